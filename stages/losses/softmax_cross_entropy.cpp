// Softmax cross entropy: one pass per row for the maximum, one for the exponentials, one to scale.
#include <algorithm>
#include <cmath>
#include <string>

#include "millrace/stages/loss.hpp"
#include "stages/kernels/exponential.hpp"
#include "stages/kernels/precision.hpp"
#include "stages/losses/weights.hpp"

namespace millrace {
namespace {

constexpr const char* kName = "softmax cross entropy";

/// The classes and their weights.
TargetWeights checked_classes(const TensorList& targets) {
  TargetWeights weights(kName, targets);
  if (targets[0] && targets[0].dtype() == DType::I32) return weights;
  throw InvalidArgument(std::string(kName) + " needs i32 class indices as targets, got " +
                        (targets[0] ? name_of(targets[0].dtype()) : "nothing"));
}

/// Logits of one prediction.
std::int64_t classes_of(const Tensor& predictions) {
  const std::size_t extents = predictions.dims().size();
  return extents == 0 ? 1 : predictions.dims()[extents - 1];
}

std::size_t class_of(std::int32_t target, std::int64_t row, std::int64_t classes) {
  if (target >= 0 && target < classes) return static_cast<std::size_t>(target);
  throw InvalidArgument("the target of row " + std::to_string(row) + " is class " +
                        std::to_string(target) + ", but the model has classes 0 to " +
                        std::to_string(classes - 1));
}

/// One row of logits: its loss and, where wanted, its gradient.
template <class T>
class Row {
 public:
  Row(const T* logits, std::size_t classes) : logits_(logits), classes_(classes) {
    for (std::size_t j = 1; j < classes; ++j)
      if (logits[j] > logits[best_]) best_ = j;
  }

  [[nodiscard]] std::size_t best() const { return best_; }

  /// Writes e^(z_j - max) and returns their sum, added in column order.
  T exponentials(T* to) const {
    for (std::size_t j = 0; j < classes_; ++j) to[j] = exponential(logits_[j] - logits_[best_]);
    T total = 0;
    for (std::size_t j = 0; j < classes_; ++j) total += to[j];
    return total;
  }

  [[nodiscard]] double loss(T total, std::size_t target) const {
    return std::log(static_cast<double>(total)) -
           (static_cast<double>(logits_[target]) - static_cast<double>(logits_[best_]));
  }

 private:
  const T* logits_;
  std::size_t classes_;
  std::size_t best_ = 0;
};

template <class T>
void to_gradient(T* exponentials, std::size_t classes, T total, std::size_t target, double scale) {
  const T factor = static_cast<T>(scale) / total;
  for (std::size_t j = 0; j < classes; ++j) exponentials[j] *= factor;
  exponentials[target] -= static_cast<T>(scale);
}

template <class T>
LossSum measure_rows(const PassContext& context,
                     const Tensor& predictions,
                     const std::int32_t* targets,
                     const TargetWeights& weights,
                     Tensor& gradient) {
  LossSum sum;
  const std::int64_t columns = classes_of(predictions);
  const auto classes = static_cast<std::size_t>(columns);
  const std::int64_t rows = columns == 0 ? 0 : predictions.elements() / columns;
  for (std::int64_t i = 0; i < rows; ++i) {
    T* out = values<T>(gradient) + i * columns;
    const double weight = weights[i];
    if (weight == 0) {
      std::fill_n(out, columns, T(0));
      continue;
    }
    const Row<T> row(values<T>(predictions) + i * columns, classes);
    const std::size_t target = class_of(targets[i], i, columns);
    const T total = row.exponentials(out);
    sum += {weight * row.loss(total, target), weight, row.best() == target ? 1 : 0, 1};
    if (context.training) to_gradient(out, classes, total, target, weight * context.loss_scale);
  }
  return sum;
}

}  // namespace

double SoftmaxCrossEntropy::weight(const TensorList& targets) const {
  return checked_classes(targets).sum();
}

LossResult SoftmaxCrossEntropy::measure(const PassContext& context,
                                        const Tensor& predictions,
                                        const TensorList& targets) const {
  const TargetWeights weights = checked_classes(targets);
  const std::int64_t rows =
      predictions.elements() / std::max<std::int64_t>(classes_of(predictions), 1);
  if (targets[0].elements() != rows)
    throw InvalidArgument(std::string(kName) + " got " + std::to_string(targets[0].elements()) +
                          " targets for " + std::to_string(rows) + " rows of predictions");
  LossResult result;
  Tensor gradient = context.make(predictions.dtype(), predictions.dims());
  with_precision(predictions.dtype(), [&](auto zero) {
    result.sum = measure_rows<decltype(zero)>(
        context, predictions, values<std::int32_t>(targets[0]), weights, gradient);
  });
  if (context.training) result.gradient = std::move(gradient);
  return result;
}

}  // namespace millrace
