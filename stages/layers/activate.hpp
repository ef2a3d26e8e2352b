// Activations applied to tensors, for Linear (fused) and ActivationLayer.
#pragma once

#include "millrace/core/tensor.hpp"
#include "millrace/stages/layer_kinds.hpp"
#include "millrace/stages/stage.hpp"

namespace millrace {

/// Bytes of the slopes f'(z) of `elements` numbers: one byte each for Relu (0 or 1), none for None,
/// the dtype's size otherwise.
[[nodiscard]] std::size_t slope_bytes(Activation activation, DType dtype, std::int64_t elements);

/// DType of kept slopes: U8 for Relu, the data's own otherwise.
[[nodiscard]] DType slope_dtype(Activation activation, DType dtype);

/// to = f(from), and slopes = f'(from) when `slopes` is not null. `to` and `from` may be one
/// tensor.
void activate(const PassContext& context,
              Activation activation,
              const Tensor& from,
              Tensor& to,
              Tensor* slopes);

/// gradient = gradient * slopes.
void chain(const PassContext& context,
           Activation activation,
           Tensor& gradient,
           const Tensor& slopes);

}  // namespace millrace
