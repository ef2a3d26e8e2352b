// Narrow numbers: f32 rounded to bf16 or f16, and held in half the memory. Layers compute in f32;
// this is what lies between them.
#pragma once

#include <span>
#include <string_view>

#include "millrace/core/tensor.hpp"
#include "millrace/stages/stage.hpp"

namespace millrace {

/// Whether it is f16 or bf16: numbers that are stored and sent, and widened to f32 to compute.
[[nodiscard]] constexpr bool is_narrow(DType dtype) {
  return dtype == DType::F16 || dtype == DType::BF16;
}

/// Gives every number the value of the nearest one of `precision`, ties to the even one; what is
/// too large becomes infinite (f16: from 65,520 on), what is not a number stays none. Does nothing
/// for f32. The same bits on every processor. Cost: O(n). Thread-safety: re-entrant, as all here.
void round_to(DType precision, std::span<float> values);

/// The f32 tensor in numbers of `precision`, f16 or bf16, rounded as above.
[[nodiscard]] Tensor narrowed(const PassContext& context, const Tensor& wide, DType precision);

/// An f16 or bf16 tensor in f32, exactly.
[[nodiscard]] Tensor widened(const PassContext& context, const Tensor& narrow);

/// "f32", "bf16" or "f16". Throws InvalidArgument that names those three.
[[nodiscard]] DType precision_of(std::string_view name);

}  // namespace millrace
