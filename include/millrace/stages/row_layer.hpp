// The base of layers that do the same to every row of one tensor: linear maps, norms, activations.
#pragma once

#include <cstdint>
#include <vector>

#include "millrace/stages/layer.hpp"

namespace millrace {

/// A layer of one tensor [..., input extents] to one [..., output extents], both of one dtype (f32
/// or f64): whatever lies before these extents (samples, or samples and positions) is rows to it.
/// Its passes see [rows, columns]. The extents are the columns alone, unless a layer of rows that
/// are images says otherwise. Keeps to the contract of Layer.
/// Thread-safety: externally synchronised.
class RowLayer : public Layer {
 public:
  [[nodiscard]] std::vector<TensorType> infer(std::span<const TensorType> inputs) const final;
  TensorList forward(const PassContext& context, TensorList inputs, Stash& stash) final;
  TensorList backward_input(const PassContext& context,
                            TensorList output_gradients,
                            Stash& stash,
                            bool wanted) final;
  [[nodiscard]] LayerBytes bytes(std::span<const TensorType> inputs) const final;

  /// Input [rows, in] to output [rows, out].
  virtual Tensor forward_rows(const PassContext& context, Tensor input, Stash& stash) = 0;
  /// Gradient of the output [rows, out] to gradient of the input [rows, in]; an empty tensor when
  /// it is not wanted.
  virtual Tensor backward_rows(const PassContext& context,
                               Tensor output_gradient,
                               Stash& stash,
                               bool wanted) = 0;

  [[nodiscard]] virtual DType dtype() const = 0;
  [[nodiscard]] virtual std::int64_t input_columns() const = 0;
  [[nodiscard]] virtual std::int64_t output_columns() const = 0;
  /// What a row is made of; their product is the number of columns.
  [[nodiscard]] virtual Dims input_extents() const { return {input_columns()}; }
  [[nodiscard]] virtual Dims output_extents() const { return {output_columns()}; }
  /// Bytes kept for `rows` rows after F, and between I and W.
  [[nodiscard]] virtual std::size_t bytes_after_forward(std::int64_t rows) const = 0;
  [[nodiscard]] virtual std::size_t bytes_after_input(std::int64_t rows) const = 0;
};

}  // namespace millrace
