// Walk: what released each action of a timeline, followed backwards. Under the critical path and
// under the paths that decide the span.
#pragma once

#include <optional>
#include <vector>

#include "millrace/scheduler/plan/simulate.hpp"
#include "plan/model/lookup.hpp"
#include "plan/model/message_places.hpp"
#include "plan/model/stage_sums.hpp"

namespace millrace::plan {

/// Walks a timeline backwards. With contention a message may have stood behind others of its link,
/// as a gradient all-reduce may behind others of its rank; then the first of that queue
/// is what released. Thread-safety: immutable, share freely.
class Walk {
 public:
  /// All three must outlive the walk.
  Walk(const Graph& graph, const Cost& cost, const Timeline& timeline);

  /// The chain that ends with the action that ends last.
  [[nodiscard]] std::vector<Node> path() const;

  /// What released the action: its predecessor on the rank or the producer whose message came last;
  /// kNoNode for an action that nothing holds up. Of several, the predecessor.
  [[nodiscard]] Node releaser(Node node) const;

  [[nodiscard]] const Interval& interval(Node node) const {
    const Rank rank = graph_.rank(node);
    return timeline_.ranks[rank.index()][node - graph_.first(rank)];
  }

 private:
  /// A message of a busy link: when it is there, and the first of the messages it stood behind
  /// (itself, when the link was free).
  struct Queued {
    double arrival = 0;
    Node head = kNoNode;
  };

  [[nodiscard]] Node last() const;
  [[nodiscard]] bool as_one(Node first) const;
  [[nodiscard]] double scale() const { return timeline_.ticks_per_unit / cost_.ticks_per_unit; }
  [[nodiscard]] double message(Node producer, Node consumer, bool carries) const;
  void queue_from(Rank source);
  [[nodiscard]] const Queued* queued(Node producer, Node consumer) const;
  void queue_all();
  void queue_sums();
  [[nodiscard]] Node last_sum(Node reduction, double release, Node otherwise) const;
  void note_ends();
  [[nodiscard]] Node freed_for(Node node, double release) const;

  const Graph& graph_;
  const Cost& cost_;
  const Timeline& timeline_;
  MessagePlaces places_;
  std::vector<Queued> queues_;  // by place; empty without contention
  PlannedSums sums_;
  std::vector<Queued> sum_queues_;  // of sums_.all()
  std::vector<std::pair<double, Node>>
      ends_;  // of passes, in order; empty where none are waited for
};

}  // namespace millrace::plan
