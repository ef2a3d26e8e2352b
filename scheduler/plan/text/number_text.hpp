// Numbers in messages: at most 12 significant digits, without trailing zeros.
#pragma once

#include <array>
#include <cstdio>
#include <string>

namespace millrace::plan {

/// At most so many significant digits and no zeros behind them: "2", "1.5", "2147483648".
[[nodiscard]] inline std::string number_text(double value, int digits = 12) {
  std::array<char, 40> text{};
  const int length = std::snprintf(text.data(), text.size(), "%.*g", digits, value);
  return {text.data(), static_cast<std::size_t>(length)};
}

}  // namespace millrace::plan
