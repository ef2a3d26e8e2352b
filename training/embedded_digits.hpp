// The digits file as the build embeds it (cmake/MillraceEmbed.cmake writes the definition), so that
// the command works wherever it is installed.
#pragma once

#include <cstdint>
#include <span>

namespace millrace {

/// The bytes of data/digits.csv.gz.
std::span<const std::uint8_t> embedded_digits();

}  // namespace millrace
