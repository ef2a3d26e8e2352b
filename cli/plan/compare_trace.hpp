// A plan's simulation beside a measured trace of it.
#pragma once

#include <string>

#include "cli/plan/options.hpp"

namespace millrace::cli {

/// Simulates `plan` with the given costs, or with the trace's mean times when none are given, and
/// prints both timelines: makespan, bubble, what every op of every stage and rank took and when it
/// started. Throws InvalidArgument or DataError for a bad option or file.
void compare_with_trace(const std::string& plan,
                        const std::string& trace,
                        const PlanOptions& options);

}  // namespace millrace::cli
