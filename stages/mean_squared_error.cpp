// Mean squared error: the sum of squares in element order, in double.
#include <string>

#include "millrace/stages/loss.hpp"
#include "stages/precision.hpp"

namespace millrace {
namespace {

template <class T>
double measure_all(const Tensor& predictions,
                   const Tensor& targets,
                   Tensor& gradient,
                   double scale) {
  const T* y = detail::values<T>(predictions);
  const T* t = detail::values<T>(targets);
  double sum = 0;
  for (std::int64_t i = 0; i < predictions.elements(); ++i) {
    const T difference = y[i] - t[i];
    sum += static_cast<double>(difference) * static_cast<double>(difference);
    if (gradient) detail::values<T>(gradient)[i] = T(2) * difference * static_cast<T>(scale);
  }
  return sum;
}

}  // namespace

double MeanSquaredError::weight(const Tensor& targets) const {
  if (targets && (targets.dtype() == DType::F32 || targets.dtype() == DType::F64))
    return static_cast<double>(targets.elements());
  throw InvalidArgument(std::string("mean squared error needs f32 or f64 targets, got ") +
                        (targets ? name_of(targets.dtype()) : "nothing"));
}

LossResult MeanSquaredError::measure(const PassContext& context,
                                     const Tensor& predictions,
                                     const Tensor& targets) const {
  const double elements = weight(targets);
  if (targets.dtype() != predictions.dtype() || targets.elements() != predictions.elements())
    throw InvalidArgument(std::string("mean squared error got targets ") +
                          name_of(targets.dtype()) + " " + to_string(targets.dims()) +
                          " for predictions " + name_of(predictions.dtype()) + " " +
                          to_string(predictions.dims()));
  LossResult result;
  if (context.training) result.gradient = context.make(predictions.dtype(), predictions.dims());
  detail::with_precision(predictions.dtype(), [&](auto zero) {
    using T = decltype(zero);
    result.sum.sum = measure_all<T>(predictions, targets, result.gradient, context.loss_scale);
  });
  result.sum.weight = elements;
  return result;
}

}  // namespace millrace
