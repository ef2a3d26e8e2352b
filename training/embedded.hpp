// Files that the build embeds (cmake/MillraceEmbed.cmake), so that the command works wherever it is
// installed.
#pragma once

#include <cstdint>
#include <span>

namespace millrace {

std::span<const std::uint8_t> embedded_digits();  ///< data/digits.csv.gz
std::span<const std::uint8_t> embedded_text();    ///< data/king_james.txt.gz
std::span<const std::uint8_t> run_page_style();   ///< training/watch/run_page.css

}  // namespace millrace
