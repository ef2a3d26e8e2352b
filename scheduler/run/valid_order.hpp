// One order of all actions that keeps every edge of the graph, and what follows from it.
#pragma once

#include <cstdint>
#include <vector>

#include "millrace/scheduler/plan/graph.hpp"

namespace millrace::run {

/// Each rank in turn goes as far as it can. Throws InvalidArgument, naming the action that waits
/// for ever, when the graph has a cycle. Cost: O(actions) for programs that alternate between
/// ranks.
[[nodiscard]] std::vector<Node> valid_order(const Graph& graph);

/// Actions on the longest way from each node to the end of the program, itself included.
[[nodiscard]] std::vector<std::uint32_t> remaining_path(const Graph& graph);

}  // namespace millrace::run
