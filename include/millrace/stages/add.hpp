// The sum of several tensors: where branches of a model meet.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/stages/layer.hpp"

namespace millrace {

/// y = (x_1 + x_2) + ... + x_n, element by element in this order, of n >= 2 tensors of one type.
/// F keeps nothing; I: dx_i = dy for every i. No weights.
/// Thread-safety: externally synchronised.
class Add final : public Layer {
 public:
  struct Settings {
    std::size_t inputs = 2;
    DType dtype = DType::F32;
    std::uint32_t layer = 0;  ///< global number, for messages
  };

  /// Throws InvalidArgument with fewer than 2 inputs and for a dtype other than f32 and f64.
  explicit Add(const Settings& settings);

  [[nodiscard]] std::vector<TensorType> infer(std::span<const TensorType> inputs) const override;
  TensorList forward(const PassContext& context, TensorList inputs, Stash& stash) override;
  TensorList backward_input(const PassContext& context,
                            TensorList output_gradients,
                            Stash& stash,
                            bool wanted) override;

  [[nodiscard]] LayerBytes bytes(std::span<const TensorType>) const override { return {}; }
  [[nodiscard]] std::string describe() const override;

 private:
  Settings settings_;
};

}  // namespace millrace
