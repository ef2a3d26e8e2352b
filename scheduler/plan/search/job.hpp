// Job: a program's compute actions with their costs, flattened into arrays. What list scheduling,
// the local search, the bound and the exact solver read instead of asking Cost and Shape again for
// every action of every evaluation.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/scheduler/plan/objective.hpp"
#include "millrace/scheduler/plan/program.hpp"
#include "plan/search/work.hpp"

namespace millrace::plan {

/// Number of a compute action: rank by rank, in the order of the program the job was made of.
using JobNode = std::uint32_t;

inline constexpr JobNode kNoJobNode = std::numeric_limits<JobNode>::max();

/// A data dependency and the ticks a message needs on it (0 inside a rank).
struct JobEdge {
  JobNode node = kNoJobNode;
  double delay = 0;
};

/// Execution order of all ranks: rank r owns [first[r], first[r + 1]).
using JobOrder = std::vector<JobNode>;

/// Thread-safety: immutable once built, share freely.
class Job {
 public:
  /// Requires compute actions only, each once, without recompute and without contention in `cost`;
  /// throws InvalidArgument otherwise. Overlapped pairs are taken as two actions.
  /// `work`, which must outlive the job, counts what is looked at and may throw Stopped.
  Job(const Program& program, const Cost& cost, Work* work = nullptr);

  /// Counts actions that somebody looks at.
  void spend(std::size_t actions) const {
    if (work_counter_ != nullptr) work_counter_->spend(actions);
  }

  [[nodiscard]] std::size_t size() const { return actions_.size(); }
  [[nodiscard]] int ranks() const { return shape_.ranks; }
  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] const Action& action(JobNode node) const { return actions_[node]; }
  [[nodiscard]] std::size_t rank(JobNode node) const { return rank_[node]; }
  [[nodiscard]] double ticks(JobNode node) const { return ticks_[node]; }
  /// Change of the rank's memory when the action has run (F: when it starts).
  [[nodiscard]] double memory(JobNode node) const { return memory_[node]; }
  [[nodiscard]] JobNode first(std::size_t rank) const { return first_[rank]; }
  [[nodiscard]] double work(std::size_t rank) const { return work_[rank]; }

  [[nodiscard]] std::span<const JobEdge> producers(JobNode node) const {
    return {producers_.data() + producer_start_[node],
            producers_.data() + producer_start_[node + 1]};
  }
  [[nodiscard]] std::span<const JobEdge> consumers(JobNode node) const {
    return {consumers_.data() + consumer_start_[node],
            consumers_.data() + consumer_start_[node + 1]};
  }

  /// Whether all ticks and delays are integers, so that sums of them are exact.
  [[nodiscard]] bool is_whole() const { return whole_; }

  /// The order of the program the job was made of.
  [[nodiscard]] JobOrder own_order() const;
  /// The program that runs `order`.
  [[nodiscard]] Program program(const JobOrder& order) const;

 private:
  void number(const Program& program, const Cost& cost);
  void connect(const Cost& cost);
  void invert();

  Work* work_counter_;
  Shape shape_;
  std::string name_;
  std::vector<Action> actions_;
  std::vector<std::uint32_t> rank_;
  std::vector<double> ticks_, memory_, work_;
  bool whole_ = true;
  std::vector<JobNode> first_;
  std::vector<std::uint32_t> producer_start_, consumer_start_;
  std::vector<JobEdge> producers_, consumers_;
};

/// Every forward, then every backward (fused or split), of one shape: a program
/// that names what has to be done, as a start for whoever decides the order.
[[nodiscard]] Program everything(const Shape& shape, bool fused);

}  // namespace millrace::plan
