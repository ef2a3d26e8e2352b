// Losses: what the last stage adds to its layers. Each returns a sum and the weight it was summed
// over, so that unequal micro-batches give the mean of the whole mini-batch exactly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "millrace/core/tensor.hpp"
#include "millrace/stages/stage.hpp"

namespace millrace {

/// What `Loss::measure` found.
struct LossResult {
  LossSum sum;
  Tensor
      gradient;  ///< of sum.sum times loss_scale, shaped like the predictions; empty in evaluation
};

/// A loss L(predictions, targets) = (sum over samples) / (weight).
/// The gradient is that of the *sum*, times `context.loss_scale`; whoever runs the step sets that
/// to 1 / (total weight of the step), known beforehand by `weight`. Thread-safety: immutable, share
/// freely.
class Loss {
 public:
  Loss() = default;
  Loss(const Loss&) = delete;
  Loss& operator=(const Loss&) = delete;
  virtual ~Loss() = default;

  /// The weight that `measure` will report for these targets. Throws InvalidArgument when they do
  /// not have the loss's form.
  [[nodiscard]] virtual double weight(const Tensor& targets) const = 0;

  /// Sum, weight and (when `context.training`) gradient of predictions [rows, columns].
  /// Sums run in row order in double. Throws InvalidArgument when predictions and targets do not
  /// fit.
  [[nodiscard]] virtual LossResult measure(const PassContext& context,
                                           const Tensor& predictions,
                                           const Tensor& targets) const = 0;

  [[nodiscard]] virtual std::string describe() const = 0;
};

/// Softmax cross entropy: sum over rows of log(sum_j exp(z_j)) - z_t, for logits z [rows, classes]
/// (f32 or f64) and targets t (i32, one class index in [0, classes) per row). Weight: rows.
/// Gradient: softmax(z) - onehot(t). `correct` counts the rows whose first largest logit is z_t.
/// Each row is shifted by its maximum, so no logit overflows.
/// Thread-safety: immutable, share freely.
class SoftmaxCrossEntropy final : public Loss {
 public:
  [[nodiscard]] double weight(const Tensor& targets) const override;
  [[nodiscard]] LossResult measure(const PassContext& context,
                                   const Tensor& predictions,
                                   const Tensor& targets) const override;
  [[nodiscard]] std::string describe() const override { return "softmax cross entropy"; }
};

/// Squared error: sum over all elements of (y - t)^2, for predictions y and targets t of the same
/// dtype (f32 or f64) and number of elements. Weight: the number of elements, so that sum / weight
/// is the mean squared error. Gradient: 2 (y - t).
/// Thread-safety: immutable, share freely.
class MeanSquaredError final : public Loss {
 public:
  [[nodiscard]] double weight(const Tensor& targets) const override;
  [[nodiscard]] LossResult measure(const PassContext& context,
                                   const Tensor& predictions,
                                   const Tensor& targets) const override;
  [[nodiscard]] std::string describe() const override { return "mean squared error"; }
};

}  // namespace millrace
