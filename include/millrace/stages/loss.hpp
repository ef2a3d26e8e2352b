// Losses: what the last stage adds to its layers. Each returns a sum and the weight it was summed
// over, so that unequal micro-batches give the mean of the whole mini-batch exactly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "millrace/core/tensor_list.hpp"
#include "millrace/stages/stage.hpp"

namespace millrace {

/// What `Loss::measure` found.
struct LossResult {
  LossSum sum;
  Tensor
      gradient;  ///< of sum.sum times loss_scale, shaped like the predictions; empty in evaluation
};

/// A loss L(predictions, targets) = (weighted sum over the targets) / (sum of their weights).
/// The gradient is that of the *sum*, times `context.loss_scale`: the code that runs the step sets
/// that to 1 / (total weight of the step), known beforehand by `weight`. Thread-safety: immutable,
/// share freely.
class Loss {
 public:
  Loss() = default;
  Loss(const Loss&) = delete;
  Loss& operator=(const Loss&) = delete;
  virtual ~Loss() = default;

  /// The weight that `measure` will report for these targets. Throws InvalidArgument when they do
  /// not have the loss's form.
  [[nodiscard]] virtual double weight(const TensorList& targets) const = 0;

  /// Sum, weight and (when `context.training`) gradient of predictions [..., columns]. `targets` is
  /// the tensor of targets and, where elements count differently, an f32 tensor of weights (at
  /// least 0), one for each target: a target of weight 0 is not looked at.
  /// Sums run in row order in double. Throws InvalidArgument when predictions and targets do not
  /// fit.
  [[nodiscard]] virtual LossResult measure(const PassContext& context,
                                           const Tensor& predictions,
                                           const TensorList& targets) const = 0;

  [[nodiscard]] virtual std::string describe() const = 0;
};

/// Softmax cross entropy: sum over rows of w (log(sum_j exp(z_j)) - z_t), for logits z [...,
/// classes] (f32 or f64) and targets t [...] (i32, one class index in [0, classes) per row of
/// logits), w = 1 without weights. Weight: the sum of w. Gradient: w (softmax(z) - onehot(t)). Of
/// the rows with w above 0, `evaluated` counts all and `correct` those whose first largest logit is
/// z_t. Each row is shifted by its maximum, so no logit overflows. Thread-safety: immutable, share
/// freely.
class SoftmaxCrossEntropy final : public Loss {
 public:
  [[nodiscard]] double weight(const TensorList& targets) const override;
  [[nodiscard]] LossResult measure(const PassContext& context,
                                   const Tensor& predictions,
                                   const TensorList& targets) const override;
  [[nodiscard]] std::string describe() const override { return "softmax cross entropy"; }
};

/// Squared error: sum over all elements of w (y - t)^2, for predictions y and targets t of the same
/// dtype (f32 or f64) and number of elements, w = 1 without weights. Weight: the sum of w, so that
/// sum / weight is the mean squared error. Gradient: 2 w (y - t).
/// Thread-safety: immutable, share freely.
class MeanSquaredError final : public Loss {
 public:
  [[nodiscard]] double weight(const TensorList& targets) const override;
  [[nodiscard]] LossResult measure(const PassContext& context,
                                   const Tensor& predictions,
                                   const TensorList& targets) const override;
  [[nodiscard]] std::string describe() const override { return "mean squared error"; }
};

}  // namespace millrace
