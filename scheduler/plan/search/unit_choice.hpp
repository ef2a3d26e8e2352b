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
  /// Cost of a recompute before this backward; the cheapest is chosen first.
  using Price = std::function<double(Node backward)>;

  /// Begins with the recompute of `program`. As Job in what it throws and what `work` is.
  UnitChoice(const Program& program, const Cost& cost, Work* work);

  [[nodiscard]] const Job& job() const { return job_; }

  /// Changes whether a backward recomputes. The change is open until it is settled or undone.
  void choose(Node backward, bool again);
  /// Backwards whose choice is open, each once.
  [[nodiscard]] const std::vector<Node>& open() const { return open_; }
  void settle() { open_.clear(); }
  void undo();

  /// Lets backwards of the rank recompute, except `kept`, until the rank stays within the limit at
  /// every place of the order. False: that is impossible; choices on the way are open.
  bool make_room(
      const JobOrder& order, std::size_t rank, double limit, const Price& price, Node kept);
  /// Backwards no longer recompute where the ranks have room, the first of the order first.
  void give_back(const JobOrder& order, double limit);

 private:
  [[nodiscard]] bool helps(Node backward) const {
    return kept_.memory(unit_[backward]) > again_.memory(unit_[backward]);
  }

  Job kept_, again_, job_;  // none recomputes, all do, those that are chosen do
  std::vector<Node> unit_;  // by F: its B or I; by B or I: its F
  std::vector<Node> open_;
};

}  // namespace millrace::plan
