// The oracle of shared processors: walks through time tick by tick, starts what may start and asks
// of every waiting pass how long it has waited. It shares no code with the clock.
#pragma once

#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/scheduler/plan/graph.hpp"
#include "millrace/scheduler/plan/simulate.hpp"

namespace millrace::testing_plan {

/// Slow, obvious run of a program whose passes take whole ticks, at least one each, over links of
/// one latency, on `cost.cores` processors.
class SteppedCores {
 public:
  SteppedCores(const Graph& graph, const Cost& cost)
      : graph_(graph), cost_(cost), started_(graph.size()), ended_(graph.size()) {
    for (const auto& list : graph.program().ranks) {
      ranks_.push_back({graph.first(Rank{static_cast<std::int32_t>(ranks_.size())}), {}, {}});
      ranks_.back().end = ranks_.back().next + static_cast<Node>(list.size());
    }
  }

  /// Intervals of all actions; nothing when they have not ended by tick `last`.
  std::optional<std::vector<std::vector<Interval>>> run(int last) {
    for (int now = 0; now <= last; ++now) {
      while (settle(now)) continue;
      while (begin_oldest(now)) continue;
      if (all_done()) return intervals();
    }
    return std::nullopt;
  }

 private:
  struct RankState {
    Node next = 0, end = 0;
    std::optional<int> waits_since;  ///< the next is a pass that stands for a processor
    std::optional<Node> runs = {};
  };

  [[nodiscard]] std::optional<double> end_of(Node node) const {
    if (!is_receive(graph_.action(node).op) || !started_[node]) return ended_[node];
    const auto sent = end_of(graph_.producers(node).front());
    if (!sent) return std::nullopt;
    return std::max(*started_[node], *sent + cost_.latency);
  }

  [[nodiscard]] bool has_all(Node node, int now) const {
    for (const Node producer : graph_.producers(node)) {
      const auto end = end_of(producer);
      const double way = graph_.rank(producer) == graph_.rank(node) ? 0 : cost_.latency;
      if (!end || *end + way > now) return false;
    }
    return true;
  }

  [[nodiscard]] bool is_pass(Node node) const {
    const Op op = graph_.action(node).op;
    return is_compute(op) || op == Op::OptimizerStep;
  }

  /// Ends what ends now and moves every rank up to its next pass. Returns whether anything moved.
  bool settle(int now) {
    bool moved = false;
    for (RankState& rank : ranks_) {
      if (rank.runs && *ended_[*rank.runs] <= now) {
        rank.runs.reset();
        moved = true;
      }
      if (rank.runs || rank.waits_since || rank.next == rank.end) continue;
      const bool posts = is_receive(graph_.action(rank.next).op);
      if (!posts && !has_all(rank.next, now)) continue;
      moved = true;
      if (is_pass(rank.next)) {
        rank.waits_since = now;
        continue;
      }
      started_[rank.next] = now;
      if (!posts) ended_[rank.next] = now;
      ++rank.next;
    }
    return moved;
  }

  bool begin_oldest(int now) {
    int busy = 0;
    RankState* oldest = nullptr;
    for (RankState& rank : ranks_) {
      if (rank.runs) ++busy;
      if (rank.waits_since && (oldest == nullptr || *rank.waits_since < *oldest->waits_since))
        oldest = &rank;
    }
    if (oldest == nullptr || busy >= cost_.cores) return false;
    oldest->waits_since.reset();
    oldest->runs = oldest->next++;
    started_[*oldest->runs] = now;
    ended_[*oldest->runs] = now + cost_.ticks(graph_.action(*oldest->runs));
    return true;
  }

  [[nodiscard]] bool all_done() const {
    for (const RankState& rank : ranks_)
      if (rank.runs || rank.next != rank.end) return false;
    return true;
  }

  [[nodiscard]] std::vector<std::vector<Interval>> intervals() const {
    std::vector<std::vector<Interval>> all(ranks_.size());
    for (Node node = 0; node < graph_.size(); ++node)
      all[graph_.rank(node).index()].push_back({*started_[node], *end_of(node)});
    return all;
  }

  const Graph& graph_;
  const Cost& cost_;
  std::vector<std::optional<double>> started_, ended_;  // by node
  std::vector<RankState> ranks_;
};

}  // namespace millrace::testing_plan
