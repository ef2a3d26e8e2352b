// Replay: runs every rank's list as far as it goes. The one loop under verify, simulate and the
// capacities; they differ in what executing an action means.
#pragma once

#include <vector>

#include "millrace/scheduler/plan/graph.hpp"
#include "plan/model/lookup.hpp"

namespace millrace::plan {

/// The rank of a node that rank `r` waits for: mostly a neighbour, which is asked first.
[[nodiscard]] inline std::size_t holder_beside(const Graph& graph, std::size_t r, Node wanted) {
  const auto rank = [](std::size_t number) { return Rank{static_cast<std::int32_t>(number)}; };
  const std::size_t ranks = graph.program().ranks.size();
  const std::size_t after = r + 1 < ranks ? r + 1 : 0;
  const std::size_t before = r > 0 ? r - 1 : ranks - 1;
  for (const std::size_t guess : {after, before})
    if (graph.first(rank(guess)) <= wanted && wanted < graph.first(rank(guess + 1))) return guess;
  return graph.rank(wanted).index();
}

/// The cursors of all ranks. A rank runs until an action has to wait for a node of another rank, is
/// then hung on that rank, and is looked at again when that rank has run as far as it could: long
/// runs per rank keep the memory traffic sequential.
class Replay {
 public:
  explicit Replay(const Graph& graph)
      : graph_(graph),
        ranks_(static_cast<std::size_t>(graph.program().shape.ranks)),
        next_(ranks_),
        wanted_(ranks_, kNoNode),
        first_waiter_(ranks_, kNobody),
        next_waiter_(ranks_, kNobody) {
    for (std::size_t r = 0; r < ranks_; ++r) next_[r] = graph.first(rank(r));
  }

  /// `step(rank, node)` executes the node and returns kNoNode, or returns the node it waits for.
  /// Returns whether every list was finished. Cost: O(actions + edges).
  template <class Step>
  bool run(Step&& step) {
    return run_lists([&](Rank on, Node node, Node end, Node& wanted) {
      while (node < end) {
        wanted = step(on, node);
        if (wanted != kNoNode) break;
        ++node;
      }
      return node;
    });
  }

  /// As run(), with the loop over a list in the hands of the caller: `go(rank, node, end, wanted)`
  /// executes from `node` on and returns the first node not executed; before `end` it also sets
  /// `wanted`.
  template <class Go>
  bool run_lists(Go&& go) {
    std::vector<std::uint32_t> ready;
    for (std::size_t r = ranks_; r-- > 0;) ready.push_back(static_cast<std::uint32_t>(r));
    while (!ready.empty()) {
      const std::uint32_t r = ready.back();
      ready.pop_back();
      advance(r, go);
      wake(r, ready);
    }
    for (std::size_t r = 0; r < ranks_; ++r)
      if (next_[r] != graph_.first(rank(r + 1))) return false;
    return true;
  }

  /// First node of each rank that was not executed.
  [[nodiscard]] const std::vector<Node>& next() const { return next_; }

  /// The rank of a node that rank `r` waits for.
  [[nodiscard]] std::size_t holder(std::size_t r, Node wanted) const {
    return holder_beside(graph_, r, wanted);
  }

 private:
  static constexpr std::uint32_t kNobody = 0xFFFFFFFF;

  static Rank rank(std::size_t r) { return Rank{static_cast<std::int32_t>(r)}; }

  template <class Go>
  void advance(std::uint32_t r, Go&& go) {
    const Node end = graph_.first(rank(r + 1));
    Node wanted = kNoNode;
    next_[r] = go(rank(r), next_[r], end, wanted);
    if (next_[r] < end) hang(r, wanted);
  }

  void hang(std::uint32_t r, Node wanted) {
    const std::size_t on = holder(r, wanted);
    wanted_[r] = wanted;
    next_waiter_[r] = first_waiter_[on];
    first_waiter_[on] = r;
  }

  void wake(std::uint32_t on, std::vector<std::uint32_t>& ready) {
    std::uint32_t* link = &first_waiter_[on];
    while (*link != kNobody) {
      const std::uint32_t r = *link;
      if (wanted_[r] < next_[on]) {
        *link = next_waiter_[r];
        ready.push_back(r);
      } else {
        link = &next_waiter_[r];
      }
    }
  }

  const Graph& graph_;
  std::size_t ranks_;
  std::vector<Node> next_;
  std::vector<Node> wanted_;
  std::vector<std::uint32_t> first_waiter_;  // by rank: a list of the ranks that wait for it
  std::vector<std::uint32_t> next_waiter_;
};

}  // namespace millrace::plan
