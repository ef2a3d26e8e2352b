// What PyTorch computes with: where two processes differ in it, their bits may.
#pragma once

#include "millrace/transport/listener.hpp"

namespace millrace {

/// PyTorch's version, the instructions that its own kernels use ("AVX2"), the BLAS that multiplies
/// (OpenBLAS with its version and its kernels' processor, else the library's file) and oneDNN with
/// its instructions: what ranks compare when they meet, beside build_fields().
///
///     HelloFields fields = torch_fields();
///     fields.emplace_back("corpus", digest);
///     JoinedRank rank = join_launch({.fields = fields});
///
/// A rank with another value is refused, and the sentence names the field and both. Thread-safe.
[[nodiscard]] HelloFields torch_fields();

}  // namespace millrace
