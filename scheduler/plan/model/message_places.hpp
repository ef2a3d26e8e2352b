// Where what is known of each message is kept: by the action that sends it, and, where one gives to
// several stages at once, by the stage that gets it.
#pragma once

#include <cstddef>
#include <vector>

#include "millrace/scheduler/plan/graph.hpp"
#include "millrace/scheduler/plan/stage_graph.hpp"

namespace millrace::plan {

/// Calls `use(StageLink, Stage receiver)` for every message of an action, whether its receiver is
/// on another rank or not: one for a send, in a program that has messages; else one for every link
/// along which F, B or I gives.
template <class Use>
void for_each_message(const Graph& graph, const Action& action, Use&& use) {
  const StageGraph& stages = graph.stage_graph();
  if (!graph.has_messages())
    return for_each_link_out(stages, action, [&](const StageLink& link) {
      use(link, action.op == Op::Forward ? link.to : link.from);
    });
  if (!is_send(action.op)) return;
  if (const auto link = stages.link(action))
    use(*link, action.op == Op::SendForward ? link->to : link->from);
}

/// Numbers of messages: that of the node where no action sends more than one.
/// Thread-safety: immutable, share freely.
class MessagePlaces {
 public:
  /// `graph` must outlive this. Cost: O(actions), in a chain O(1).
  explicit MessagePlaces(const Graph& graph) : graph_(&graph), single_(graph.gives_once()) {
    if (single_) return;
    first_.reserve(graph.size() + 1);
    first_.push_back(0);
    for (const auto& list : graph.program().ranks)
      for (const Action& action : list) {
        std::size_t count = 0;
        for_each_message(graph, action, [&](const StageLink&, Stage) { ++count; });
        first_.push_back(first_.back() + count);
      }
  }

  [[nodiscard]] std::size_t size() const { return single_ ? graph_->size() : first_.back(); }

  /// The place of what `node`, which is `action`, gives `receiver`.
  [[nodiscard]] std::size_t at(Node node, const Action& action, Stage receiver) const {
    if (single_) return node;
    std::size_t place = first_[node], found = place;
    for_each_message(*graph_, action, [&](const StageLink&, Stage stage) {
      if (stage == receiver) found = place;
      ++place;
    });
    return found;
  }

 private:
  const Graph* graph_;
  bool single_;
  std::vector<std::size_t> first_;
};

}  // namespace millrace::plan
