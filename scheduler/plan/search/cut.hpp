// Cut: the states of the exact solver and the rules that make one from another. A state is a block
// of doubles so that a million of them lie in one array: rank clocks, then the arrival times of
// the messages under way, each in every lane (see Lanes in relaxation.hpp); the counts of the
// classes are its key.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plan/search/relaxation.hpp"

namespace millrace::plan {

/// One stage's F, I, W or B: its micro-batches run in ascending order.
struct CutClass {
  std::vector<Node> nodes;  ///< by micro-batch
  std::size_t rank = 0;
  double ticks = 0;
  double memory = 0;
  double room = 0;                 ///< what must be free for it to run
  std::vector<std::size_t> after;  ///< classes whose j-th must have run before the j-th of this one
  std::size_t arrivals = 0;        ///< of its messages' arrival times in a state
  std::size_t sender = kNone;      ///< class on another rank that sends to this one
  double delay = 0;                ///< ticks of that message

  static constexpr std::size_t kNone = ~std::size_t{0};
};

using CutCounts = std::string;  ///< one byte per class; hashed and compared as a string
using CutTimes = std::vector<double>;

/// The rules: what can run next, what it leads to, how good it can become.
/// Thread-safety: externally synchronised (keeps scratch arrays).
class CutRules {
 public:
  /// `job` of one replica without slices, as `everything` makes it; both must outlive the rules.
  CutRules(const Job& job, const Relaxation& relaxation, double limit);

  [[nodiscard]] std::size_t classes() const { return classes_.size(); }
  [[nodiscard]] std::size_t width() const { return entries_ * lanes_; }
  [[nodiscard]] Node node(std::size_t cls, std::size_t index) const {
    return classes_[cls].nodes[index];
  }

  /// The times before anything has run.
  [[nodiscard]] CutTimes begin() const;

  /// Classes to branch on from a state (see exact.hpp, 2).
  void branches(const CutCounts& counts,
                std::span<const double> times,
                std::vector<std::size_t>& out);

  /// Runs the next action of `cls`: changes counts and times in place.
  void apply(std::size_t cls, CutCounts& counts, std::span<double> times) const;

  /// Lower bound of all completions that are below `value`, `value` if there are none; also raises
  /// the times to what the state makes of them anyway.
  double settle(const CutCounts& counts, std::span<double> times, double value);

 private:
  struct Option {
    std::size_t cls = 0;
    std::size_t times = 0;  // of its start and its end, in option_times_
  };

  void find_lane(std::size_t lane);
  void collect_classes(const Job& job);
  void connect_classes(const Job& job);
  [[nodiscard]] static std::size_t count(const CutCounts& counts, std::size_t cls) {
    return static_cast<unsigned char>(counts[cls]);
  }
  [[nodiscard]] std::size_t entry(std::size_t cls, std::size_t index) const {
    return (classes_[cls].arrivals + index) * lanes_;
  }
  [[nodiscard]] double start(std::size_t cls,
                             std::size_t index,
                             std::size_t lane,
                             std::span<const double> times) const;
  [[nodiscard]] bool has_inputs(std::size_t cls, const CutCounts& counts) const;
  [[nodiscard]] bool has_room(std::size_t cls) const;
  [[nodiscard]] bool may_move_up(std::size_t cls, const CutCounts& counts) const;
  void list_options(const CutCounts& counts, std::span<const double> times);
  [[nodiscard]] std::span<const double> start_of(const Option& option) const {
    return {option_times_.data() + option.times, lanes_};
  }
  [[nodiscard]] std::span<const double> end_of(const Option& option) const {
    return {option_times_.data() + option.times + lanes_, lanes_};
  }
  [[nodiscard]] bool conflict(const Option& first, const Option& other) const;
  bool branch_on_one_rank(const CutCounts& counts, std::vector<std::size_t>& out);
  void branch_on_earliest(const CutCounts& counts, std::vector<std::size_t>& out);
  [[nodiscard]] bool waits_for_none(const Option& first, const CutCounts& counts) const;

  void find_heads(const CutCounts& counts, std::span<const double> times);
  bool relate_starts(std::span<const double> times, double value);
  void raise(std::span<double> lanes) const;
  void raise_tails(std::span<double> lanes) const;
  void clip(const CutCounts& counts, std::span<double> times) const;
  double lane_bound(std::size_t lane);
  [[nodiscard]] bool has_run(Node node, const CutCounts& counts) const {
    return index_of_[node] < count(counts, class_of_[node]);
  }

  const Job& job_;
  const Relaxation& relaxation_;
  double limit_;
  double root_bound_;
  std::size_t lanes_;
  std::size_t ranks_;
  std::size_t entries_ = 0;
  std::size_t micro_batches_;
  std::vector<CutClass> classes_;
  std::vector<std::size_t> class_of_;  // by node
  std::vector<std::size_t> index_of_;  // by node, in its class
  std::vector<double> memory_;         // by rank, of the current state
  std::vector<double> tail_;           // by node and lane
  std::vector<double> leads_;          // by two lanes: from the start of one to that of the other
  std::vector<double> head_;           // by node and lane, of the current state
  std::vector<double> ahead_;          // as leads_, as far as the current state says
  std::vector<double> end_tail_;       // by node and lane: tail_ raised by ahead_
  std::vector<double> first_;          // by rank and lane: earliest start of what is left
  std::vector<Option> options_, earliest_;
  std::vector<double> option_times_;
  std::vector<Node> left_;  // what has not run
  std::vector<std::vector<HeadTail>> rank_jobs_;
};

}  // namespace millrace::plan
