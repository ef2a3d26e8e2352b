// Which units (micro-batches, or their slices) of a stage run their forward again: a job in which
// each may be chosen, with what that does to the memory of a rank.
#pragma once

#include <functional>
#include <vector>

#include "plan/model/job.hpp"

namespace millrace::plan {

/// A choice for every backward pass of a job. Thread-safety: externally synchronised.
class UnitChoice {
 public:
  /// Of a backward: what dropping its forward's activations costs; the least is dropped first.
  using Price = std::function<double(Node backward)>;

  /// Begins with the recompute of `program`. As Job in what it throws and what `work` is.
  UnitChoice(const Program& program, const Cost& cost, Work* work);

  [[nodiscard]] const Job& job() const { return job_; }

  /// Lets a backward recompute, or not. The change is open until it is settled or undone.
  void choose(Node backward, bool again);
  /// Backwards whose choice is open, each once.
  [[nodiscard]] const std::vector<Node>& open() const { return open_; }
  void settle() { open_.clear(); }
  void undo();

  /// Lets backwards of the rank recompute until it stays within the limit at every place of the
  /// order; `kept` does not. False: that cannot be; what was chosen on the way is open.
  bool make_room(
      const JobOrder& order, std::size_t rank, double limit, const Price& price, Node kept);
  /// Of the recomputes, those that the ranks have room to do without, stop.
  void give_back(const JobOrder& order, double limit);
  [[nodiscard]] bool fits(const JobOrder& order, std::size_t rank, double limit) const;

 private:
  [[nodiscard]] bool helps(Node backward) const {
    return kept_.memory(unit_[backward]) > again_.memory(unit_[backward]);
  }

  Job kept_, again_, job_;  // none recomputes, all do, those that are chosen do
  std::vector<Node> unit_;  // by F: its B or I; by B or I: its F
  std::vector<Node> open_;
};

}  // namespace millrace::plan
