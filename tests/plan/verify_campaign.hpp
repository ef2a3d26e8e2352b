// The claim that random programs are held against, in the unit suite and in the fuzzer: verify and
// the simulator agree with oracles that share no code with them.
#pragma once

#include <span>
#include <string>
#include <variant>

#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
#include "millrace/scheduler/plan/verify.hpp"
#include "support/naive_replay.hpp"
#include "support/random_program.hpp"

namespace millrace::testing_plan {

/// What is wrong with the proof for messages that are not written, of a valid compute program.
inline std::string disagreement_once_written(const Graph& graph,
                                             const std::vector<std::vector<Interval>>& run) {
  if (!inserted_messages_cannot_hang(graph, {.ranks = run, .ticks_per_unit = 1}))
    return "no proof for messages that are not written";
  const Program written = insert_messages(graph.program());
  for (const int capacity : {0, 1, 2}) {
    const auto transport = capacity == 0 ? Transport::rendezvous() : Transport::bounded(capacity);
    if (!verify(written, transport).empty() ||
        !ends_with_capacity(written, static_cast<std::size_t>(capacity)))
      return "proved without the messages, but they hang with capacity " + std::to_string(capacity);
  }
  return "";
}

/// What is wrong for the program these bytes decide, or nothing. `silent` counts valid programs.
inline std::string disagreement(std::span<const std::uint8_t> bytes, int& silent) {
  const Program program = random_program(bytes);
  const auto violations = verify(program);
  const Graph graph(program);
  if (verify(graph).size() != violations.size()) return "verify judges the graph otherwise";
  const Cost cost = Cost::of_full_stage(program.shape, 3, 2, 4, 1);
  const auto naive = NaiveReplay(program, cost).run();
  if (!violations.empty()) {
    const bool order_only = violations.front().rule == Rule::Order;
    return order_only && naive
               ? "verify sees a cycle where the replay ends: " + violations.front().message
               : "";
  }
  ++silent;
  const auto result = simulate(graph, cost);
  if (!std::holds_alternative<Timeline>(result)) return "verify is silent, simulate deadlocks";
  if (!naive) return "verify is silent, the replay deadlocks";
  if (std::get<Timeline>(result).ranks != *naive) return "simulate and replay differ";
  for (const int capacity : {0, 1, 2, 3}) {
    const auto transport = capacity == 0 ? Transport::rendezvous() : Transport::bounded(capacity);
    const bool proved = verify(program, transport).empty();
    const bool ends =
        !graph.has_messages() || ends_with_capacity(program, static_cast<std::size_t>(capacity));
    if (proved != ends)
      return std::string("the proof says ") + (proved ? "ends" : "hangs") + " with capacity " +
             std::to_string(capacity) + ", the executor disagrees";
  }
  return graph.has_messages() ? "" : disagreement_once_written(graph, *naive);
}

}  // namespace millrace::testing_plan
