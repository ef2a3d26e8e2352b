// A linear map with its activation, the layer that multilayer perceptrons are made of.
#pragma once

#include <cstdint>
#include <string>

#include "millrace/stages/activation.hpp"
#include "millrace/stages/row_layer.hpp"

namespace millrace {

/// y = f(x W + b) with x [rows, in], W [in, out], b [out], y [rows, out].
///
/// F keeps x and the slopes s = f'(x W + b) (see slope_bytes). With dz = dy s:
/// I: dx = dz W^T, keeps x and dz instead; W: dW += x^T dz, db += column sums of dz in row order.
/// Cost: one product of 2 rows in out operations per pass.
/// Bits: depend on the shapes and the instruction set only; the blocking of the products is fixed.
/// Thread-safety: externally synchronised.
class Linear final : public RowLayer {
 public:
  struct Settings {
    std::int64_t in = 0;
    std::int64_t out = 0;
    Activation activation = Activation::None;
    DType dtype = DType::F32;
    std::uint32_t layer = 0;  ///< global number: names the parameters and keys their first values
  };

  /// Parameters "layers.N.weight" and "layers.N.bias", without memory until `initialize`.
  /// Throws InvalidArgument when in or out < 1 or the dtype is neither f32 nor f64.
  explicit Linear(const Settings& settings);

  Tensor forward_rows(const PassContext& context, Tensor input, Stash& stash) override;
  Tensor backward_rows(const PassContext& context,
                       Tensor output_gradient,
                       Stash& stash,
                       bool wanted) override;
  void backward_weight(const PassContext& context, Stash& stash) override;

  [[nodiscard]] std::vector<Parameter*> parameters() override { return {&weight_, &bias_}; }
  /// Weights uniform in [-a, a]: a = sqrt(6 / in) before Relu and Gelu (He et al.,
  /// arXiv 1502.01852, section 2.2), a = sqrt(6 / (in + out)) otherwise (Glorot and Bengio, AISTATS
  /// 2010, equation 16). Bias zero.
  void initialize(std::uint64_t seed) override;

  [[nodiscard]] DType dtype() const override { return settings_.dtype; }
  [[nodiscard]] std::int64_t input_columns() const override { return settings_.in; }
  [[nodiscard]] std::int64_t output_columns() const override { return settings_.out; }
  [[nodiscard]] std::size_t bytes_after_forward(std::int64_t rows) const override;
  [[nodiscard]] std::size_t bytes_after_input(std::int64_t rows) const override;
  [[nodiscard]] double operations(std::span<const TensorType> inputs) const override;
  [[nodiscard]] std::string describe() const override;

 private:
  Settings settings_;
  Parameter weight_;
  Parameter bias_;
};

}  // namespace millrace
