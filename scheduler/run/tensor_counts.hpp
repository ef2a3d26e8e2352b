// How many tensors the passes of a stage take and give. They are counted, because a list that is
// too short would be trained on as if it were whole.
#pragma once

#include <cstddef>

#include "millrace/core/tensor_list.hpp"

namespace millrace::run {

/// What the first forward of a step took and gave binds its later passes: every unit has as many
/// inputs and outputs, and every one of them a gradient.
///
/// All throw InvalidArgument with a sentence that says what was given and what is wanted.
/// Thread-safety: externally synchronised; a line of its own, because stages run at the same time.
class alignas(64) TensorCounts {
 public:
  void begin_step() { inputs_ = outputs_ = kUnknown; }

  void forward_takes(const TensorList& inputs);
  void forward_gives(const TensorList& outputs);
  /// The last stage of a training step has a loss and no outputs.
  static void last_forward_gives(const TensorList& outputs);

  /// The last stage was not given any: its loss is where gradients begin.
  void backward_takes(const TensorList& output_gradients) const;
  void backward_gives(const TensorList& input_gradients) const;
  /// Nobody wants the gradients of the first stage's inputs: all of them or none.
  void first_backward_gives(const TensorList& input_gradients) const;

 private:
  static constexpr std::size_t kUnknown = ~std::size_t{0};

  std::size_t inputs_ = kUnknown;
  std::size_t outputs_ = kUnknown;
};

}  // namespace millrace::run
