// Checks of ScheduleOptions that several families share. Every refusal is one sentence that names
// the option as it is typed on the command line, the value that was given, and what works.
#pragma once

#include <optional>
#include <string>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"

namespace millrace::generators {

inline constexpr int kDefaultSlices = 2;

inline int slices_of(const ScheduleOptions& options) {
  return options.slices.value_or(kDefaultSlices);
}

/// "-m is 6 with -p 4": how a refusal opens.
inline std::string given(const char* option, int value, const ScheduleOptions& options) {
  return std::string(option) + " is " + std::to_string(value) + " with -p " +
         std::to_string(options.ranks);
}

/// What a rank may hold: the limit that was given, else p forwards, as many as 1F1B holds.
inline double memory_limit_of(const ScheduleOptions& options) {
  return options.memory_limit.value_or(options.ranks * options.memory_forward);
}

/// Throws when a search under that limit found no order.
void require_order_found(bool found, const ScheduleOptions& options);

/// Throws unless the counts that every schedule has are at least 1 and the program is of a size
/// that can be held.
void require_counts(const ScheduleEntry& entry, const ScheduleOptions& options);

/// Throws when an option is set that the schedule does not have.
void require_known_options(const ScheduleEntry& entry, const ScheduleOptions& options);

}  // namespace millrace::generators
