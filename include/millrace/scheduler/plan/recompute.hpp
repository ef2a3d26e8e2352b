// Which stages of a pipeline run their forward again: read off a program, and as the text that
// --recompute takes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "millrace/scheduler/plan/program.hpp"

namespace millrace {

/// By stage: whether the program recomputes any unit of it. Throws InvalidArgument for a recompute
/// of a stage that the shape does not have. Cost: O(actions).
[[nodiscard]] std::vector<bool> recomputed_stages(const Program& program);

/// "none", "all" or "stages:0,2-4". Cost: O(stages).
[[nodiscard]] std::string recompute_text(const std::vector<bool>& of_stage);

/// Reads that form for so many stages. Throws InvalidArgument that says what is allowed for another
/// word, a number that is none, a range that runs downwards and a stage that there is not.
[[nodiscard]] std::vector<bool> parse_recompute_stages(std::string_view text, int stages);

}  // namespace millrace
