// The fixed part of the HTML page: style and script, without external resources. The script draws
// what draw_html puts into the element `data`.
#pragma once

namespace millrace::picture {

/// Between the title and the data.
extern const char* const kPageHead;
/// After the data, one behind the other, the script.
extern const char* const kPageTimes;
extern const char* const kPageDrawing;
extern const char* const kPageControls;

}  // namespace millrace::picture
