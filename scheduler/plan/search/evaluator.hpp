// Evaluator: start and end of every action of an order, re-using what did not change. The inner
// loop of the search: after a move on one rank, whatever starts before the moved place keeps its
// times, and the run stops as soon as the objective cannot stay within the wanted bound.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "plan/model/job.hpp"
#include "plan/model/replay.hpp"
#include "plan/simulate/period.hpp"

namespace millrace::plan {

/// When something is done, and the place in the order of the pass that it follows from, whose end
/// is the last that anything on the way to it waited for.
struct RankEnd {
  double time = 0;
  std::size_t at = 0;
};

/// When each rank is done with a step: after its last pass there are the gradient all-reduces, and
/// what replicas of a stage on several ranks exchange after them.
/// Thread-safety: externally synchronised (keeps scratch arrays).
class StepEnd {
 public:
  /// `job` must outlive it.
  explicit StepEnd(const Job& job);

  /// By rank, of an order that has run to its end: `ends` by node; a rank that runs nothing is done
  /// at its start. `unit_ends` are those of the job's unit run, which say where ranks come to which
  /// stage's gradients first; empty for a job without. Cost: O(ranks), with sums O(what ranks run
  /// behind the last B or W of their first stage to be done, and ways between ranks).
  void find(const JobOrder& order,
            const std::vector<double>& ends,
            const std::vector<double>& starts,
            const std::vector<double>& unit_ends,
            std::vector<RankEnd>& result);

 private:
  void find_sums(const JobOrder& order, const std::vector<double>& ends, std::size_t rank);
  void sort_meetings(const JobOrder& order, const std::vector<double>& unit_ends);
  void meet(const Job::Meeting& meeting, std::vector<RankEnd>& result);

  const Job& job_;
  std::vector<std::size_t> begins_;    // where a rank's sums begin, last first
  std::vector<std::size_t> last_;      // by copy: the place of its last B or W
  std::vector<RankEnd> sums_;          // by copy
  std::vector<RankEnd> before_;        // by copy of a meeting: before its rank comes to it
  std::vector<double> ticks_;          // by meeting, of the unit run
  std::vector<std::size_t> meetings_;  // in the order in which ranks come to them
};

/// Times of one order and what they amount to, in ticks. `peak` is the largest memory of any rank
/// at any moment.
struct Figures {
  bool feasible = false;
  double makespan = std::numeric_limits<double>::infinity();
  double step = std::numeric_limits<double>::infinity();  // of all passes
  double span = std::numeric_limits<double>::infinity();
  double peak = 0;

  [[nodiscard]] double value(Objective objective) const {
    return objective == Objective::Makespan ? step : span;
  }
};

/// Holds a current order with its times; `try_order` looks at a neighbour, `keep` accepts it. For
/// the makespan all ranks start at 0; of several passes its value is that of all of them. For the
/// span each has its own start, from which no rank needs longer than the current order's span (see
/// period.hpp). Thread-safety: externally synchronised.
class Evaluator {
 public:
  /// `job` must outlive the evaluator.
  Evaluator(const Job& job, Objective objective);

  /// Makes `order` the current order, with the pairs that the nodes in `leads` lead (empty: none).
  /// Returns whether it runs to its end (false: it deadlocks).
  bool reset(const JobOrder& order, const std::vector<bool>& leads = {});

  /// Whether the node and the one after it run as one pair, from the next order tried on.
  void set_pair(Node node, bool leads) { leads_[node] = leads; }
  [[nodiscard]] bool leads(Node node) const { return !leads_.empty() && leads_[node]; }
  [[nodiscard]] const std::vector<bool>& pairs() const { return leads_; }
  /// Where the pair begins and ends that the action at a place is of, or the place itself.
  [[nodiscard]] std::size_t head(const JobOrder& order, std::size_t at) const {
    return at > 0 && leads(order[at - 1]) ? at - 1 : at;
  }
  [[nodiscard]] std::size_t tail(const JobOrder& order, std::size_t at) const {
    return leads(order[at]) ? at + 1 : at;
  }

  /// Times of `order`, which differs from the current order only on `rank`, at the place `from`
  /// (an index of the order) and after. Returns the makespan or no less than the span, or infinity
  /// when the order deadlocks or its objective exceeds `bound`; of the span that is also said of
  /// an order whose ranks would have to start in a much different way. Cost: O(actions that start
  /// after the first difference), less when the bound cuts; for the span up to three whole runs.
  double try_order(const JobOrder& order,
                   std::size_t rank,
                   std::size_t from,
                   double bound = std::numeric_limits<double>::infinity());

  /// Makes the order tried last, given again, the current one.
  void keep(const JobOrder& order);

  [[nodiscard]] double objective() const { return objective_value_; }
  [[nodiscard]] double end(Node node) const { return end_[node]; }
  /// Of an order without pairs.
  [[nodiscard]] double start(Node node) const { return end_[node] - job_.ticks(node); }
  /// When the rank may begin.
  [[nodiscard]] double start_of_rank(std::size_t rank) const { return starts_[rank]; }
  /// When a rank is done in the current order, gradient all-reduces included, and what
  /// that follows from.
  [[nodiscard]] const RankEnd& end_of_rank(std::size_t rank) const { return rank_ends_[rank]; }
  /// For the span: a rank of the cycle that decides it.
  [[nodiscard]] std::size_t deciding_rank() const { return deciding_rank_; }

  /// Of the current order, given again. Cost: one to a few runs.
  [[nodiscard]] Figures figures(const JobOrder& order);
  /// Largest memory of a rank, or of any, at any moment of `order`.
  [[nodiscard]] double peak(const JobOrder& order, std::size_t rank) const;
  [[nodiscard]] double peak(const JobOrder& order) const;
  /// Ticks that a rank waits for what stands at the place `at`, by the times of the current order.
  [[nodiscard]] double idle_before(const JobOrder& order, std::size_t at) const;

 private:
  struct RankState {
    double clock = 0;
    double left = 0;  // work not yet done
  };

  void begin(const JobOrder& order);
  double run_whole(const JobOrder& order, double bound);
  double run(const JobOrder& order, double bound);
  template <bool kPairs>
  Halt advance(const JobOrder& order, std::size_t rank, Node place, double bound);
  [[nodiscard]] double ticks(const JobOrder& order, std::size_t at) const {
    const bool pair = leads(order[at]);
    return pair ? job_.pair_ticks(order[at], order[at + 1]) : job_.ticks(order[at]);
  }
  Node inputs(Node node, double& begin) const;
  [[nodiscard]] double work(const JobOrder& order, std::size_t rank, std::size_t from) const;
  [[nodiscard]] Node first_not_before(std::size_t rank, double time) const;
  double start_later(const JobOrder& order, double bound);
  CycleRatio find_span(const JobOrder& order);
  void find_ends(const JobOrder& order);
  [[nodiscard]] std::size_t origin(const JobOrder& order, std::size_t at) const;
  void find_places(const JobOrder& order);

  const Job& job_;
  Objective objective_;
  int passes_;                      // whose makespans make the objective
  std::vector<bool> leads_;         // by node; empty where no pairs run as one
  JobOrder order_;                  // the current order ...
  std::vector<double> end_;         // ... its times by node ...
  std::vector<RankEnd> rank_ends_;  // ... and ranks
  double objective_value_ = 0;
  std::vector<double> starts_;  // by rank
  std::size_t deciding_rank_ = 0;
  std::vector<double> trial_;         // times of the order being tried ...
  std::vector<double> trial_starts_;  // ... from these starts
  std::vector<RankEnd> trial_ends_;   // of one that ran to its end
  double trial_value_ = 0;
  std::size_t exceeding_ = 0;         // the place where the bound was exceeded
  std::vector<std::uint32_t> place_;  // by node, of the order whose paths are followed
  std::vector<RankState> ranks_;
  Replay replay_;
  StepEnd step_end_;
  std::unique_ptr<Evaluator> unit_;  // of the job's unit run, where it has one
};

}  // namespace millrace::plan
