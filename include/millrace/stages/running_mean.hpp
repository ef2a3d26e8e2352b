// The mean of all positions so far: the smallest layer that is causal along the sequence.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/stages/layer.hpp"

namespace millrace {

/// y[n, t, :] = (x[n, 0, :] + ... + x[n, t, :]) / (t + 1); x, y [samples, positions, columns], t
/// counted over all slices of the sequence.
///
/// F shares the sum up to the slice's end, from which the next slice goes on; I adds dy[t] / (t +
/// 1) from the last position to the first, dx[n, t, :] = sum over u >= t of dy[n, u, :] / (u + 1),
/// and leaves the sum to the slice before, in the place of what that one shared. So bits do not
/// depend on the slices. No weights. Cost: one pass over the data each way. Thread-safety:
/// externally synchronised.
class RunningMean final : public Layer {
 public:
  struct Settings {
    DType dtype = DType::F32;
    std::uint32_t layer = 0;  ///< global number, for messages
  };

  /// Throws InvalidArgument for a dtype other than f32 and f64.
  explicit RunningMean(const Settings& settings);

  [[nodiscard]] std::vector<TensorType> infer(std::span<const TensorType> inputs) const override;
  TensorList forward(const PassContext& context, TensorList inputs, Stash& stash) override;
  TensorList backward_input(const PassContext& context,
                            TensorList output_gradients,
                            Stash& stash,
                            bool wanted) override;

  [[nodiscard]] LayerBytes bytes(std::span<const TensorType> inputs) const override;
  [[nodiscard]] std::string describe() const override;

 private:
  void check(const char* what, const Tensor& tensor) const;

  Settings settings_;
};

}  // namespace millrace
