// Cut: the states of the exact solver and the rules that make one from another. A state is a block
// of doubles so that a million of them lie in one array: rank clocks, then the arrival times of
// the messages under way; the counts of the classes are its key.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plan/search/relaxation.hpp"

namespace millrace::plan {

/// One stage's F, I, W or B: its micro-batches run in ascending order.
struct CutClass {
  std::vector<JobNode> nodes;  ///< by micro-batch
  std::size_t rank = 0;
  double ticks = 0;
  double memory = 0;
  std::vector<std::size_t> after;  ///< classes whose j-th must have run before the j-th of this one
  std::size_t arrivals = 0;        ///< offset of its messages' arrival times in a state
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
  CutRules(const Job& job, const Relaxation& relaxation, Objective objective, double limit);

  [[nodiscard]] std::size_t classes() const { return classes_.size(); }
  [[nodiscard]] std::size_t width() const { return width_; }
  [[nodiscard]] JobNode node(std::size_t cls, std::size_t index) const {
    return classes_[cls].nodes[index];
  }

  /// Classes to branch on from a state (see exact.hpp, 2).
  void branches(const CutCounts& counts,
                std::span<const double> times,
                std::vector<std::size_t>& out);

  /// Runs the next action of `cls`: changes counts and times in place.
  void apply(std::size_t cls, CutCounts& counts, std::span<double> times) const;

  /// Lower bound of all completions; also raises the times to what the state makes of them anyway.
  double settle(const CutCounts& counts, std::span<double> times);

 private:
  struct Option {
    std::size_t cls = 0;
    double start = 0, end = 0;
  };

  void collect_classes(const Job& job);
  void connect_classes(const Job& job);
  [[nodiscard]] static std::size_t count(const CutCounts& counts, std::size_t cls) {
    return static_cast<unsigned char>(counts[cls]);
  }
  [[nodiscard]] double start(std::size_t cls,
                             const CutCounts& counts,
                             std::span<const double> times) const;
  [[nodiscard]] bool available(std::size_t cls, const CutCounts& counts) const;
  [[nodiscard]] bool may_move_up(std::size_t cls, const CutCounts& counts) const;
  void list_options(const CutCounts& counts, std::span<const double> times);
  void find_heads(const CutCounts& counts, std::span<const double> times);
  void clip(const CutCounts& counts, std::span<double> times) const;

  const Job& job_;
  const Relaxation& relaxation_;
  Objective objective_;
  double limit_;
  double root_bound_;
  std::size_t ranks_;
  std::size_t width_ = 0;
  std::size_t micro_batches_;
  std::vector<CutClass> classes_;
  std::vector<std::size_t> class_of_;  // by node
  std::vector<std::size_t> index_of_;  // by node, in its class
  std::vector<double> memory_;         // by rank, of the state at hand
  std::vector<double> head_;           // by node
  std::vector<Option> options_;
  std::vector<std::vector<HeadTail>> rank_jobs_;
};

}  // namespace millrace::plan
