// Replay: runs every rank's list as far as it goes. The one engine under verify, simulate, the
// capacities, the search and the timetables of generators; they differ in what a list holds and
// what executing it means.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "millrace/scheduler/plan/graph.hpp"
#include "plan/model/lookup.hpp"

namespace millrace::plan {

/// The rank of a node that rank `r` waits for, by where each rank's begin: mostly a neighbour,
/// which is asked first.
[[nodiscard]] inline std::size_t holder_beside(std::span<const Node> first,
                                               std::size_t r,
                                               Node wanted) {
  const std::size_t ranks = first.size() - 1;
  const std::size_t after = r + 1 < ranks ? r + 1 : 0;
  const std::size_t before = r > 0 ? r - 1 : ranks - 1;
  for (const std::size_t guess : {after, before})
    if (first[guess] <= wanted && wanted < first[guess + 1]) return guess;
  return static_cast<std::size_t>(std::ranges::upper_bound(first, wanted) - first.begin()) - 1;
}

/// The time of what has not run.
inline constexpr double kNotYet = -1;

/// Moves `begin` to when everything from `producers` has arrived; `arrival(producer)` says when, or
/// kNotYet. Returns the first producer that has not run, else kNoNode.
template <class Arrival>
[[gnu::always_inline]] inline Node wait_for(std::span<const Node> producers,
                                            double& begin,
                                            Arrival&& arrival) {
  for (const Node producer : producers) {
    const double time = arrival(producer);
    if (time == kNotYet) return producer;
    if (time > begin) begin = time;
  }
  return kNoNode;
}

/// Where a list stands; before its end also the node that it waits for and the rank that runs it.
struct Halt {
  Node at = 0;
  Node wanted = kNoNode;
  std::size_t holder = 0;
};

/// The cursors of all ranks. A rank runs until an action has to wait for a node of another rank, is
/// then hung on that rank, and is looked at again when that rank has run as far as it could: long
/// runs per rank keep the memory traffic sequential.
class Replay {
 public:
  /// Rank r's list has the places [first[r], first[r + 1]). `first` must outlive the replay.
  explicit Replay(std::span<const Node> first)
      : first_(first),
        ranks_(first.size() - 1),
        next_(first.begin(), first.end() - 1),
        wanted_(ranks_, kNoNode),
        first_waiter_(ranks_, kNobody),
        next_waiter_(ranks_, kNobody) {}

  /// `step(rank, node)` executes the node and returns kNoNode, or returns the node it waits for.
  /// Returns whether every list was finished. Cost: O(actions + edges).
  template <class Step>
  bool run(Step&& step) {
    return run_lists([&](Rank on, Node node, Node end) {
      Node wanted = kNoNode;
      for (; node < end && wanted == kNoNode; ++node) wanted = step(on, node);
      return wanted == kNoNode ? Halt{node} : Halt{node - 1, wanted, holder(on.index(), wanted)};
    });
  }

  /// As run(), with the loop over a list in the hands of the caller: `go(rank, node, end)` executes
  /// from `node` on and says where it halted.
  template <class Go>
  bool run_lists(Go&& go) {
    return run_lists(go, [this](std::size_t on, Node wanted) { return wanted < next_[on]; });
  }

  /// As above for lists in any order: the numbers that `go` gets and returns are places, those it
  /// waits for are nodes, and `has_run(rank, node)` says which of them have run.
  template <class Go, class HasRun>
  bool run_lists(Go&& go, HasRun&& has_run) {
    stopped_ = false;
    first_waiter_.assign(ranks_, kNobody);
    ready_.clear();
    for (std::size_t r = ranks_; r-- > 0;) ready_.push_back(static_cast<std::uint32_t>(r));
    while (!ready_.empty()) {
      const std::uint32_t r = ready_.back();
      ready_.pop_back();
      const Node end = first_[r + 1];
      const Halt halt = go(rank(r), next_[r], end);
      next_[r] = halt.at;
      if (stopped_) return false;
      if (halt.at < end) hang(r, halt);
      wake(r, has_run);
    }
    for (std::size_t r = 0; r < ranks_; ++r)
      if (next_[r] != first_[r + 1]) return false;
    return true;
  }

  /// From within `go`: runs nothing more.
  void stop() { stopped_ = true; }

  /// First node (or place) of each rank that was not executed.
  [[nodiscard]] const std::vector<Node>& next() const { return next_; }
  /// Before a run: where it begins on a rank.
  void begin_at(std::size_t rank, Node place) { next_[rank] = place; }

  /// The rank of a node that rank `r` waits for.
  [[nodiscard]] std::size_t holder(std::size_t r, Node wanted) const {
    return holder_beside(first_, r, wanted);
  }

 private:
  static constexpr std::uint32_t kNobody = 0xFFFFFFFF;

  static Rank rank(std::size_t r) { return Rank{static_cast<std::int32_t>(r)}; }

  void hang(std::uint32_t r, const Halt& halt) {
    wanted_[r] = halt.wanted;
    next_waiter_[r] = std::exchange(first_waiter_[halt.holder], r);
  }

  template <class HasRun>
  void wake(std::uint32_t on, HasRun&& has_run) {
    std::uint32_t* link = &first_waiter_[on];
    while (*link != kNobody) {
      const std::uint32_t r = *link;
      if (has_run(on, wanted_[r])) {
        *link = next_waiter_[r];
        ready_.push_back(r);
      } else {
        link = &next_waiter_[r];
      }
    }
  }

  std::span<const Node> first_;
  std::size_t ranks_;
  bool stopped_ = false;
  std::vector<Node> next_;
  std::vector<Node> wanted_;
  std::vector<std::uint32_t> first_waiter_;  // by rank: a list of the ranks that wait for it
  std::vector<std::uint32_t> next_waiter_;
  std::vector<std::uint32_t> ready_;  // ranks that may go on
};

}  // namespace millrace::plan
