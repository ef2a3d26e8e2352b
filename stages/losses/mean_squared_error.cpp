// Mean squared error: the sum of squares in element order, in double.
#include <string>

#include "millrace/stages/loss.hpp"
#include "stages/kernels/precision.hpp"
#include "stages/losses/weights.hpp"

namespace millrace {
namespace {

template <class T>
double measure_all(const Tensor& predictions,
                   const Tensor& targets,
                   const TargetWeights& weights,
                   Tensor& gradient,
                   double scale) {
  const T* y = values<T>(predictions);
  const T* t = values<T>(targets);
  double sum = 0;
  for (std::int64_t i = 0; i < predictions.elements(); ++i) {
    const double weight = weights[i];
    const T difference = weight == 0 ? T(0) : y[i] - t[i];
    sum += weight * (static_cast<double>(difference) * static_cast<double>(difference));
    if (gradient) values<T>(gradient)[i] = T(2) * difference * static_cast<T>(weight * scale);
  }
  return sum;
}

TargetWeights checked_values(const TensorList& targets) {
  TargetWeights weights("mean squared error", targets);
  const Tensor& values = targets[0];
  if (values && (values.dtype() == DType::F32 || values.dtype() == DType::F64)) return weights;
  throw InvalidArgument(std::string("mean squared error needs f32 or f64 targets, got ") +
                        (values ? name_of(values.dtype()) : "nothing"));
}

}  // namespace

double MeanSquaredError::weight(const TensorList& targets) const {
  return checked_values(targets).sum();
}

LossResult MeanSquaredError::measure(const PassContext& context,
                                     const Tensor& predictions,
                                     const TensorList& targets) const {
  const TargetWeights weights = checked_values(targets);
  const Tensor& wanted = targets[0];
  if (wanted.dtype() != predictions.dtype() || wanted.elements() != predictions.elements())
    throw InvalidArgument(std::string("mean squared error got targets ") + name_of(wanted.dtype()) +
                          " " + to_string(wanted.dims()) + " for predictions " +
                          name_of(predictions.dtype()) + " " + to_string(predictions.dims()));
  LossResult result;
  if (context.training) result.gradient = context.make(predictions.dtype(), predictions.dims());
  with_precision(predictions.dtype(), [&]<class T>(T) {
    result.sum.sum =
        measure_all<T>(predictions, wanted, weights, result.gradient, context.loss_scale);
  });
  result.sum.weight = weights.sum();
  return result;
}

}  // namespace millrace
