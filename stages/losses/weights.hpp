// The weights of targets: one for each, or all 1.
#pragma once

#include <cstdint>
#include <string>

#include "millrace/core/error.hpp"
#include "millrace/core/tensor_list.hpp"

namespace millrace {

/// Reads the second tensor of a loss's targets. Thread-safety: immutable.
class TargetWeights {
 public:
  /// Throws InvalidArgument, naming the loss, unless there are one or two tensors and the second
  /// holds f32 numbers of at least 0, one for each element of the first.
  TargetWeights(const char* loss, const TensorList& targets)
      : count_(targets.empty() ? 0 : targets[0].elements()) {
    if (targets.empty() || targets.size() > 2)
      throw InvalidArgument(std::string(loss) +
                            " needs targets and, if wanted, their weights; got " +
                            std::to_string(targets.size()) + " tensors");
    if (targets.size() == 1) return;
    const Tensor& weights = targets[1];
    if (!weights || weights.dtype() != DType::F32 || weights.elements() != count_)
      throw InvalidArgument(std::string(loss) + " needs an f32 weight for each of " +
                            std::to_string(count_) + " targets, got " +
                            (weights ? name_of(weights.dtype()) + (" " + to_string(weights.dims()))
                                     : std::string("nothing")));
    values_ = static_cast<const float*>(weights.data());
    for (std::int64_t i = 0; i < count_; ++i)
      if (!(values_[i] >= 0))
        throw InvalidArgument("the weight of target " + std::to_string(i) +
                              " must be at least 0, got " + std::to_string(values_[i]));
  }

  [[nodiscard]] double operator[](std::int64_t i) const {
    return values_ == nullptr ? 1.0 : static_cast<double>(values_[i]);
  }

  [[nodiscard]] double sum() const {
    if (values_ == nullptr) return static_cast<double>(count_);
    double sum = 0;
    for (std::int64_t i = 0; i < count_; ++i) sum += static_cast<double>(values_[i]);
    return sum;
  }

 private:
  std::int64_t count_;
  const float* values_ = nullptr;
};

}  // namespace millrace
