// The activations: one enumerator each, used inside Linear and as a layer of their own. The value
// and the slope of each are in stages/<name>.hpp.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "millrace/stages/row_layer.hpp"

namespace millrace {

/// An elementwise function y = f(z).
/// - Relu: max(z, 0); the slope at 0 is 0.
/// - Gelu: the tanh form, z/2 (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3))); Hendrycks and Gimpel,
///   "Gaussian Error Linear Units", arXiv 1606.08415, section 2.
/// - Tanh: tanh(z).
enum class Activation : std::uint8_t { None, Relu, Gelu, Tanh };

/// "none", "relu", "gelu", "tanh".
[[nodiscard]] const char* name_of(Activation activation);

/// The activation called `name`. Throws InvalidArgument that lists the known names.
[[nodiscard]] Activation activation(std::string_view name);

/// Bytes of the slopes f'(z) of `elements` numbers: one byte each for Relu (0 or 1), none for None,
/// the dtype's size otherwise.
[[nodiscard]] std::size_t slope_bytes(Activation activation, DType dtype, std::int64_t elements);

/// y = f(x) as a layer; keeps the slopes [rows, columns] and nothing else.
/// I: dx = dy f'(x). No weights. Cost: one pass over the data each way.
/// Thread-safety: externally synchronised.
class ActivationLayer final : public RowLayer {
 public:
  /// `name` is the global name, "layers.3". Throws InvalidArgument when columns < 1 or the dtype is
  /// neither f32 nor f64.
  ActivationLayer(std::string name, Activation activation, std::int64_t columns, DType dtype);

  Tensor forward_rows(const PassContext& context, Tensor input, Stash& stash) override;
  Tensor backward_rows(const PassContext& context,
                       Tensor output_gradient,
                       Stash& stash,
                       bool wanted) override;

  [[nodiscard]] DType dtype() const override { return dtype_; }
  [[nodiscard]] std::int64_t input_columns() const override { return columns_; }
  [[nodiscard]] std::int64_t output_columns() const override { return columns_; }
  [[nodiscard]] std::size_t bytes_after_forward(std::int64_t rows) const override;
  [[nodiscard]] std::size_t bytes_after_input(std::int64_t) const override { return 0; }
  [[nodiscard]] std::string describe() const override;

 private:
  std::string name_;
  Activation activation_;
  std::int64_t columns_;
  DType dtype_;
};

}  // namespace millrace
