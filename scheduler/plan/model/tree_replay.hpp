// What a tree of sums holds while the passes of one stage add to it: the count under the memory
// model and under partial_sums.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "core/sum_tree.hpp"

namespace millrace::plan {

/// Sums of one stage around a pass that adds to its gradients.
struct SumsHeld {
  int before = 0;
  int opening = 0;  ///< while another micro-batch's gradients make room
  int during = 0;   ///< while the pass runs
  int joining = 0;  ///< when its micro-batch has just made its sum
  int after = 0;
};

/// Counts as the executor's tree of gradients does: gradients hold one micro-batch at a time; one
/// that others interrupt waits, and so does a sum without its partner.
/// Thread-safety: externally synchronised. Cost of a pass: O(log m x sums that wait).
class TreeReplay {
 public:
  /// Of `leaves` micro-batches in `passes_per_leaf` passes each.
  TreeReplay(int leaves, int passes_per_leaf)
      : sums_(SumTree(leaves), {0, leaves}), passes_per_leaf_(passes_per_leaf) {}

  SumsHeld pass(int leaf) {
    SumsHeld held{.before = count()};
    open(leaf);
    held.opening = held.before + (interrupts_ ? 1 : 0);
    held.during = held.joining = count();
    if (++open_->passes == passes_per_leaf_) {
      ++held.joining;
      close();
    }
    held.after = count();
    return held;
  }

 private:
  struct Leaf {
    int number = 0, passes = 0;
  };

  [[nodiscard]] int count() const { return waiting_ + static_cast<int>(interrupted_.size()); }

  void open(int leaf) {
    interrupts_ = open_ && open_->number != leaf;
    if (open_ && !interrupts_) return;
    if (interrupts_) interrupted_.push_back(*open_);
    const auto begun = std::ranges::find(interrupted_, leaf, &Leaf::number);
    open_ = begun == interrupted_.end() ? Leaf{leaf} : *begun;
    if (begun != interrupted_.end()) interrupted_.erase(begun);
  }

  void close() {
    ++waiting_;
    sums_.give(open_->number, true, [this](bool&, bool) { --waiting_; });
    open_.reset();
    if (!sums_.is_complete()) return;
    (void)sums_.take();
    waiting_ = 0;
  }

  PartialSums<bool> sums_;
  int passes_per_leaf_;
  int waiting_ = 0;
  std::optional<Leaf> open_;
  std::vector<Leaf> interrupted_;
  bool interrupts_ = false;
};

}  // namespace millrace::plan
