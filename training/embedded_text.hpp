// The text file as the build embeds it, see embedded_digits.hpp.
#pragma once

#include <cstdint>
#include <span>

namespace millrace {

/// The bytes of data/king_james.txt.gz.
std::span<const std::uint8_t> embedded_text();

}  // namespace millrace
