// Clock: gives every action of a program its start and end. The engine under simulate, the
// iterations and the jitter runs; the public functions are thin around it.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
#include "plan/model/message_places.hpp"
#include "plan/model/replay.hpp"
#include "plan/model/stage_sums.hpp"

namespace millrace::plan {

/// What one run of the clock may change: everything is optional.
struct ClockOptions {
  std::span<const double> start = {};   ///< tick at which each rank may begin; empty: all at 0
  std::span<const double> factor = {};  ///< by node: the action takes ticks * factor; empty: 1
  std::span<const double> ticks =
      {};  ///< by node: the action takes these; empty: what the cost says
  /// Whether a rank stands in a receive until the message is there, as the proofs have it. Else it
  /// posts the receive and continues.
  bool stands_in_receives = false;
};

/// Longest path through a graph. Sends, receives and reductions take no time of their own; a
/// receive ends when its message has arrived, which only those who use the message wait for, a
/// reduction when gradient all-reduces have ended.
class Clock {
 public:
  /// Requires a cost that fits the graph's shape.
  Clock(const Graph& graph, const Cost& cost, const ClockOptions& options = {});

  /// Runs all ranks. Returns whether they finished; otherwise `next()` says where they stand.
  bool run();

  [[nodiscard]] const std::vector<Node>& next() const { return replay_.next(); }
  /// Valid after run() returned true.
  [[nodiscard]] Timeline take() { return std::move(timeline_); }

 private:
  friend class SharedCores;

  [[nodiscard]] bool is_plain() const;
  bool run_plain();
  bool run_on_cores();
  void make_room();
  Halt run_list(Rank rank, Node node, Node end);
  [[nodiscard]] double arrival_plain(std::size_t holder, Node producer) const;
  Node step(Rank rank, Node node);
  [[nodiscard]] Node release(Rank rank, Node node, double& begin) const;
  void perform(Rank rank, Node node, double begin);
  [[nodiscard]] double pair_ticks(Rank rank, Node node) const;
  [[nodiscard]] Node wait_for(Rank rank, Node node, const Action& action, double& begin) const;
  [[nodiscard]] double usable(Rank rank, Node producer, const Action& consumer) const;
  [[nodiscard]] double duration(Rank rank, Node node, const Action& action) const;
  void finish(Rank rank, Node node, const Action& action, Interval interval);
  void send_all(Rank rank, Node node, const Action& action, double end);
  [[nodiscard]] double arrive(Rank rank, Rank to, Stage feeding, double end);
  [[nodiscard]] bool sends_message(Op op) const;
  void start_sum(Node node, const Action& action, double end);
  [[nodiscard]] double end_of_sums(Rank rank, const Action& action) const;
  [[nodiscard]] std::size_t ticks_index(const Action& action) const {
    return static_cast<std::size_t>(action.op) * pieces_ + cost_.at(action);
  }

  const Graph& graph_;
  const Cost& cost_;
  ClockOptions options_;
  bool pairs_;                         // some run as one
  bool plain_links_;                   // one latency for all links, nothing else: the fast path
  std::size_t pieces_ = 0;             // stages times slices
  std::array<double, kOps> flight_{};  // by op, on plain links: from its end until its arrival
  std::vector<double> ticks_;  // by op, stage and slice: one table instead of a call per action
  Replay replay_;
  Timeline timeline_;
  std::vector<double> clock_;    // by rank: when it is free
  std::vector<double> arrival_;  // by node: when another rank may use it; not on the fast path
  std::vector<double> sent_;     // by place: when that message is there; where nodes send several
  MessagePlaces places_;
  std::vector<double> link_free_;  // by source and destination, with contention
  PlannedSums sums_;
  std::vector<SumLink> sum_links_;  // by rank
  std::vector<double> sum_end_;     // of sums_.all(); below 0 before it has started
};

}  // namespace millrace::plan
