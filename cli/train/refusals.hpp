// Errors of options: the option, the value and the bound.
#pragma once

#include <cstdint>
#include <fmt/format.h>
#include <limits>
#include <string>

#include "cli/numbers.hpp"
#include "millrace/core/error.hpp"

namespace millrace::cli {

inline constexpr double kUnbounded = std::numeric_limits<double>::infinity();

/// Runs `work`; its errors begin with the option and the value.
template <class Work>
auto about(const std::string& option, const std::string& value, Work work) {
  try {
    return work();
  } catch (const InvalidArgument& error) {
    throw InvalidParameter(option + " " + value + ": " + parameter_text(error));
  } catch (const DataError& error) {
    throw DataError(option + " " + value + ": " + error.what());
  }
}

inline void require_count(const ParameterText& option,
                          std::int64_t value,
                          std::int64_t most = 1'000'000'000) {
  require(value >= 1 && value <= most,
          option + fmt::format(" {}: must be from 1 to {}", value, most));
}

inline void require_between(const std::string& option, double value, double least, double below) {
  require(value >= least && value < below,
          option + " " + exact(value) + ": must be at least " + exact(least) +
              (below < kUnbounded ? " and below " + exact(below) : " and finite"));
}

inline void require_above_zero(const std::string& option, double value) {
  require(value > 0 && value < kUnbounded, option + " " + exact(value) + ": must be above 0");
}

}  // namespace millrace::cli
