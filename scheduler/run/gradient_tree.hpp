// The gradients of one stage, added micro-batch by micro-batch in the order of a tree of sums
// instead of one behind the other.
#pragma once

#include <optional>
#include <vector>

#include "core/sum_tree.hpp"
#include "millrace/core/tensor_list.hpp"
#include "millrace/core/tensor_pool.hpp"
#include "millrace/scheduler/run/executor.hpp"

namespace millrace::run {

/// Stages add to the gradients of their parameters whatever pass they run; this keeps those
/// gradients to one micro-batch (a leaf) at a time. The slices of a leaf add up inside it, in the
/// order of their passes. What waits for its partner in the tree waits in tensors of the pool, and
/// so does a leaf that another one interrupts. When all leaves are there, the gradients hold their
/// sum.
/// Thread-safety: externally synchronised. Cost of a leaf: the gradients are read and written twice
/// (copied, set to zero), and once more for each sum that it completes.
class GradientTree {
 public:
  explicit GradientTree(const HostedStage& hosted)
      : stage_(hosted.stage), parameters_(hosted.body->parameters()) {}

  /// A step over the leaves of `node`, each of so many passes. Throws InvalidArgument when that is
  /// no node of the tree.
  void begin_step(const SumTree& tree, LeafRange node, int passes_per_leaf);

  /// The next pass adds to the gradients of `leaf`. `meter` counts the bytes of all sums that the
  /// tree holds beside the gradients.
  void open(int leaf, TensorPool& pool, StashMeter& meter);

  /// A pass of the leaf that was opened has ended. `is_empty`: of no samples.
  void close(bool is_empty, TensorPool& pool, StashMeter& meter);

  /// Between two passes of the program or at the end of a step: whether all leaves so far are
  /// whole.
  [[nodiscard]] bool is_between_leaves() const { return !open_ && interrupted_.empty(); }
  [[nodiscard]] bool is_complete() const { return is_between_leaves() && given_; }
  /// Of a complete one: false when all leaves were empty.
  [[nodiscard]] bool has_sum() const { return has_sum_; }

  /// Drops everything that waits.
  void clear() noexcept;

 private:
  struct Leaf {
    int number = 0;
    int passes = 0;       // that have ended
    TensorList sum = {};  // while another one is open
  };

  [[nodiscard]] TensorList take_gradients(TensorPool& pool, StashMeter& meter) const;
  void put_gradients(const TensorList& sum, StashMeter& meter) const;

  Stage stage_;
  std::vector<Parameter*> parameters_;
  std::optional<PartialSums<TensorList>> sums_;
  int passes_per_leaf_ = 1;
  std::optional<Leaf> open_;
  std::vector<Leaf> interrupted_;
  bool given_ = false;  // the whole sum lies in the gradients
  bool has_sum_ = false;
};

}  // namespace millrace::run
