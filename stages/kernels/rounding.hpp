// Narrow numbers in memory that is no tensor's.
#pragma once

#include <cstdint>

#include "millrace/core/tensor.hpp"

namespace millrace::detail {

/// `count` numbers of f32 in numbers of `precision`, f16 or bf16, rounded as round_to says.
void narrow(DType precision, const float* from, std::int64_t count, void* to);

}  // namespace millrace::detail
