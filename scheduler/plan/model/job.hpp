// Job: what a search orders: an open graph and what its nodes and edges cost. Ticks and memory lie
// in arrays by node, because list scheduling, the local search, the bound and the exact solver ask
// for them in every evaluation. A recompute is not a node: it stays right before its
// backward, whose node takes the ticks of both and needs the gradient that much after its start.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/scheduler/plan/graph.hpp"
#include "millrace/scheduler/plan/optimum.hpp"
#include "millrace/scheduler/plan/program.hpp"
#include "plan/model/work.hpp"

namespace millrace::plan {

/// Execution order of all ranks: rank r owns [first(r), first(r + 1)).
using JobOrder = std::vector<Node>;

/// Thread-safety: immutable once built, share freely.
class Job {
 public:
  /// Requires compute actions only, each once, a recompute only right before its B or I, and no
  /// contention or shared processors in `cost`; throws InvalidArgument otherwise. Overlapped pairs
  /// are two nodes.
  /// `work`, which must outlive the job, counts what is looked at and may throw Stopped.
  Job(Program program, const Cost& cost, Work* work = nullptr);
  Job(const Job&) = delete;  // the graph points to the program
  Job& operator=(const Job&) = delete;
  Job(Job&&) = delete;
  Job& operator=(Job&&) = delete;
  ~Job() = default;

  /// Counts actions that somebody looks at.
  void spend(std::size_t actions) const {
    if (work_counter_ != nullptr) work_counter_->spend(actions);
  }

  [[nodiscard]] const Graph& graph() const { return graph_; }
  [[nodiscard]] std::size_t size() const { return graph_.size(); }
  [[nodiscard]] int ranks() const { return program_.shape.ranks; }
  [[nodiscard]] const Shape& shape() const { return program_.shape; }
  [[nodiscard]] const Action& action(Node node) const {
    const std::size_t r = rank_[node];
    return program_.ranks[r][node - first(r)];
  }
  [[nodiscard]] std::size_t rank(Node node) const { return rank_[node]; }
  /// Of the action, with the recompute before it.
  [[nodiscard]] double ticks(Node node) const { return ticks_[node]; }
  /// Change of the rank's memory when the action has run (F: when it starts).
  [[nodiscard]] double memory(Node node) const { return memory_[node]; }
  /// The most that it adds to the rank's memory at any moment: that change, or more while it runs,
  /// such as what a recompute brings back before its backward frees some of it.
  [[nodiscard]] double room(Node node) const { return room_[node]; }
  /// Ticks of the sum of a stage's gradients over the data-parallel replicas, on the link of its
  /// rank and behind that.
  struct Sum {
    double transfer = 0, delay = 0;
  };
  /// Whether each stage has such a sum, which begins with its last B or W.
  [[nodiscard]] bool has_sums() const { return !sums_.empty(); }
  [[nodiscard]] const Sum& sum(Replica replica, Stage stage) const {
    return sums_[copy(replica, stage)];
  }
  /// A number for each replica of each stage.
  [[nodiscard]] std::size_t copy(Replica replica, Stage stage) const {
    return replica.index() * static_cast<std::size_t>(shape().stages()) + stage.index();
  }
  [[nodiscard]] std::size_t rank_of_copy(std::size_t copy) const { return copy_rank_[copy]; }
  /// The copies that add their gradients together: all replicas of a stage, and of those tied to
  /// it.
  struct Meeting {
    std::vector<std::size_t> copies;
    std::vector<double> ways;  ///< ticks by giver and taker; 0 on one rank
  };
  /// By their first stages; empty without sums.
  [[nodiscard]] const std::vector<Meeting>& meetings() const { return meetings_; }
  /// The same nodes with F = I = W = 1, whose run says in which order ranks come to the meetings
  /// (see insert_reductions); null where none is of several ranks.
  [[nodiscard]] const Job* unit_run() const { return unit_run_.get(); }
  /// Of the program in one step; sums follow the last one.
  [[nodiscard]] int passes() const { return passes_; }
  [[nodiscard]] bool has_recompute() const { return !recomputes_.empty(); }
  [[nodiscard]] bool recomputes(Node node) const { return has_recompute() && recomputes_[node]; }
  /// Whether some overlapped pairs run as one.
  [[nodiscard]] bool has_pairs() const { return pairs_.any(); }
  /// Ticks of two neighbours that run as one; below 0 where they cannot.
  [[nodiscard]] double pair_ticks(Node one, Node other) const {
    if (recomputes(one) || recomputes(other)) return -1;
    const double ticks = pairs_.of(action(one).op, action(other).op);
    return speed_.empty() ? ticks : ticks / speed_[rank_[one]];
  }
  /// The most that such a pair adds to the rank's memory at any moment.
  [[nodiscard]] double pair_room(Node one, Node other) const {
    return std::max(inside_[one] + inside_[other], memory_[one] + memory_[other]);
  }
  /// By node: whether it leads a pair of the program the job was made of; empty without pairs.
  [[nodiscard]] const std::vector<bool>& own_pairs() const { return leads_; }

  [[nodiscard]] Node first(std::size_t rank) const {
    return graph_.first(Rank{static_cast<std::int32_t>(rank)});
  }
  [[nodiscard]] double work(std::size_t rank) const { return work_[rank]; }

  [[nodiscard]] std::span<const Node> producers(Node node) const { return graph_.producers(node); }
  [[nodiscard]] std::span<const Node> consumers(Node node) const {
    return {consumers_.data() + consumer_start_[node],
            consumers_.data() + consumer_start_[node + 1]};
  }
  /// Ticks from the end of `producer` to the earliest start of `node` that it allows: those of the
  /// message, 0 on one rank. Less the recompute of `node`, which does not wait for a gradient: so
  /// it may be negative.
  [[nodiscard]] double delay(Node producer, Node node) const {
    const std::size_t from = rank_[producer], to = rank_[node];
    if (from == to) return 0;
    const double message = links_.empty() ? link_
                           : sized_       ? sized_message(producer, node)
                                          : links_[from * program_.ranks.size() + to];
    return lead_.empty() ? message : message - lead_[node];
  }

  /// Whether all ticks and delays are integers, so that sums of them are exact.
  [[nodiscard]] bool is_whole() const { return whole_; }

  /// Makes `node` cost what it costs in `other`, a job of the same passes and cost with other
  /// recompute, and recompute or not as it does there. A forward and its backward go together.
  void price_like(const Job& other, Node node);

  /// Largest memory of the rank at any moment of `order`.
  [[nodiscard]] double peak(const JobOrder& order, std::size_t rank) const;

  /// The order of the program the job was made of.
  [[nodiscard]] JobOrder own_order() const;
  /// The program that runs `order`, every recompute right before its backward, with the pairs that
  /// the nodes in `leads` lead.
  [[nodiscard]] Program program(const JobOrder& order, const std::vector<bool>& leads = {}) const;

 private:
  void place_nodes();
  void price_nodes(const Cost& cost);
  void price_links(const Cost& cost);
  [[nodiscard]] double sized_message(Node producer, Node node) const;
  void price_sums(const Cost& cost);
  void invert();
  void find_whole();

  Work* work_counter_;
  std::vector<bool> recomputes_;  // by node; empty when none does
  PairTimes pairs_;
  std::vector<double> speed_;  // by rank; empty: all 1
  std::vector<bool> leads_;    // by node; empty without pairs
  Program program_;            // without recompute
  Graph graph_;
  std::vector<std::uint32_t> rank_;
  std::vector<double> ticks_, memory_, room_, work_;
  std::vector<double> inside_;          // by node: added to the memory while it runs; with pairs
  std::vector<double> lead_;            // by node: ticks of its recompute; or empty
  double link_ = 0;                     // ticks of every message ...
  std::vector<double> links_;           // ... or by source and destination, where links differ
  std::unique_ptr<Cost> sized_;         // ... or by boundary, where message sizes differ
  std::vector<Sum> sums_;               // by copy
  std::vector<std::size_t> copy_rank_;  // with sums, by copy
  std::vector<Meeting> meetings_;
  std::unique_ptr<Job> unit_run_;
  int passes_ = 1;
  bool whole_ = true;
  std::vector<std::uint32_t> consumer_start_;
  std::vector<Node> consumers_;
};

/// Every forward, then every backward (fused or split), of one shape: a program
/// that names what has to be done, as a start for whoever decides the order.
[[nodiscard]] Program everything(const Shape& shape, bool fused);

}  // namespace millrace::plan
