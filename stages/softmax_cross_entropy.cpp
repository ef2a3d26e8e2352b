// Softmax cross entropy: one pass per row for the maximum, one for the exponentials, one to scale.
#include <cmath>
#include <string>

#include "millrace/stages/loss.hpp"
#include "stages/exponential.hpp"
#include "stages/precision.hpp"

namespace millrace {
namespace {

void check_targets(const Tensor& targets) {
  if (targets && targets.dtype() == DType::I32) return;
  throw InvalidArgument(
      std::string("softmax cross entropy needs i32 class indices as targets, got ") +
      (targets ? name_of(targets.dtype()) : "nothing"));
}

std::size_t class_of(std::int32_t target, std::int64_t row, std::int64_t classes) {
  if (target >= 0 && target < classes) return static_cast<std::size_t>(target);
  throw InvalidArgument("the target of row " + std::to_string(row) + " is class " +
                        std::to_string(target) + ", but the model tells classes 0 to " +
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
    for (std::size_t j = 0; j < classes_; ++j)
      to[j] = detail::exponential(logits_[j] - logits_[best_]);
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
                     Tensor& gradient) {
  LossSum sum;
  const std::int64_t columns = predictions.columns();
  const auto classes = static_cast<std::size_t>(columns);
  for (std::int64_t i = 0; i < predictions.rows(); ++i) {
    const Row<T> row(detail::values<T>(predictions) + i * columns, classes);
    const std::size_t target = class_of(targets[i], i, columns);
    T* out = detail::values<T>(gradient) + i * columns;
    const T total = row.exponentials(out);
    sum += {row.loss(total, target), 1, row.best() == target ? 1 : 0, 1};
    if (context.training) to_gradient(out, classes, total, target, context.loss_scale);
  }
  return sum;
}

}  // namespace

double SoftmaxCrossEntropy::weight(const Tensor& targets) const {
  check_targets(targets);
  return static_cast<double>(targets.elements());
}

LossResult SoftmaxCrossEntropy::measure(const PassContext& context,
                                        const Tensor& predictions,
                                        const Tensor& targets) const {
  check_targets(targets);
  if (targets.elements() != predictions.rows())
    throw InvalidArgument("softmax cross entropy got " + std::to_string(targets.elements()) +
                          " targets for " + std::to_string(predictions.rows()) +
                          " rows of predictions");
  LossResult result;
  Tensor gradient = context.make(predictions.dtype(), predictions.dims());
  detail::with_precision(predictions.dtype(), [&](auto zero) {
    result.sum = measure_rows<decltype(zero)>(
        context, predictions, detail::values<std::int32_t>(targets), gradient);
  });
  if (context.training) result.gradient = std::move(gradient);
  return result;
}

}  // namespace millrace
