// Learned positions: a row of a table added to every position of a sequence.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/stages/layer.hpp"

namespace millrace {

/// y[n, t] = x[n, t] + W[t]; x and y [samples, positions, columns], W [context, columns], t counted
/// from the beginning of the sequence, in slices too. Gehring et al., arXiv 1705.03122,
/// section 3.1. F keeps nothing. I: dx = dy, keeps dy; W: dW[t] += sum of dy[n, t] over the samples
/// in order. Thread-safety: externally synchronised.
class Positions final : public Layer {
 public:
  struct Settings {
    std::int64_t context = 0;  ///< longest sequence
    std::int64_t columns = 0;
    DType dtype = DType::F32;
    std::uint32_t layer = 0;  ///< global number: names the parameters and keys their first values
  };

  /// Throws InvalidArgument when context or columns < 1 or the dtype is neither f32 nor f64.
  explicit Positions(const Settings& settings);

  [[nodiscard]] std::vector<TensorType> infer(std::span<const TensorType> inputs) const override;
  /// Throws InvalidArgument for a sequence longer than the context.
  TensorList forward(const PassContext& context, TensorList inputs, Stash& stash) override;
  TensorList backward_input(const PassContext& context,
                            TensorList output_gradients,
                            Stash& stash,
                            bool wanted) override;
  void backward_weight(const PassContext& context, Stash& stash) override;

  [[nodiscard]] std::vector<Parameter*> parameters() override { return {&weight_}; }
  /// Uniform in [-a, a] with a = 0.02 sqrt(3): a standard deviation of 0.02.
  void initialize(std::uint64_t seed) override;
  [[nodiscard]] LayerBytes bytes(std::span<const TensorType> inputs) const override;
  [[nodiscard]] std::string describe() const override;

 private:
  void check(const char* what, const Tensor& tensor) const;

  Settings settings_;
  Parameter weight_;
};

}  // namespace millrace
