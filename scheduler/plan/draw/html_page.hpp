// The fixed part of the HTML page: style and script, without external resources. The script draws
// what draw_html puts into the element `data`.
#pragma once

namespace millrace::picture {

/// Between the title and the data.
extern const char* const kPageHead;
/// After the data.
extern const char* const kPageScript;

}  // namespace millrace::picture
