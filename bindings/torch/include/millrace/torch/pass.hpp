// Which unit's pass the calling thread runs: what a module asks that draws random numbers of ours.
#pragma once

#include "millrace/stages/stage.hpp"

namespace millrace {

/// Makes a context the calling thread's current one, as long as it lives. A TorchStage does this
/// around its module; a loop of your own does it to draw the same numbers:
///
///     PassContext context;
///     context.step = step, context.first_sample = first;
///     const TorchPass pass(context);
///     loss(model->forward(inputs)).backward();
///
/// Thread-safety: thread-affine: only the thread that created it; passes nest.
class TorchPass {
 public:
  explicit TorchPass(const PassContext& context);
  TorchPass(const TorchPass&) = delete;
  TorchPass& operator=(const TorchPass&) = delete;
  ~TorchPass();

  /// The innermost one's; null outside of all.
  [[nodiscard]] static const PassContext* current();

 private:
  PassContext context_;
  const PassContext* before_;
};

}  // namespace millrace
