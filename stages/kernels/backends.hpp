// The GEMM libraries, each in a folder of its own. Only product.cpp chooses
// between them; the benchmark of products and its tests call both.
#pragma once

#include <string>

#include "stages/kernels/product.hpp"

namespace millrace {

/// Whether this build has oneDNN (MILLRACE_GEMM).
inline constexpr bool kOneDnn = MILLRACE_ONEDNN != 0;

namespace eigen {

/// Every product, in f32 and f64.
template <class T>
void multiply(const PassContext& context, const Gemm& product, const T* a, const T* b, T* c);

/// "Eigen 3.4.0". The instructions are those that the library was compiled for.
[[nodiscard]] std::string name();

}  // namespace eigen

namespace onednn {

/// Whether a product in f32 is worth the call; Eigen has the others. Depends on the extents alone.
/// The limits are where the two met on an AVX-512 processor (see bench/README.md): oneDNN's tiles
/// take 32 columns, and its packing must be paid for, most of all that of a transposed b.
[[nodiscard]] constexpr bool pays(const Gemm& product) {
  const auto& [rows, columns, depth, a_transposed, b_transposed, accumulate, factors, a_stride] =
      product;
  if (columns < 32) return false;
  if (a_transposed) return depth >= 8 && rows * columns * depth >= 1 << 16;
  if (depth < 32) return false;
  if (!b_transposed) return rows >= 24 || columns * depth >= 1 << 12;
  if (depth >= 96) return rows >= 128 || columns >= 64;
  return rows >= 128 || (rows >= 16 && columns >= 128);
}

/// Rows of a product that are given to one call. With fewer than 16 rows oneDNN reads a transposed
/// b where it lies, which is faster than packing it until there are 128.
[[nodiscard]] constexpr std::int64_t rows_at_once(const Gemm& product) {
  const bool lies = product.b_transposed && !product.a_transposed && product.depth >= 96;
  return lies && product.rows < 128 ? 12 : product.rows;
}

/// In the calling thread alone, for any OpenMP settings, with its signals blocked
/// (blocked_signals.hpp). Throws std::bad_alloc without memory for packing.
void multiply(
    const PassContext& context, const Gemm& product, const float* a, const float* b, float* c);

/// Whether this processor, as the library may use it, multiplies bf16, and the product is large
/// enough to pay for the rounding of its factors and the look-up of the library's code for it.
[[nodiscard]] bool pays_in_bf16(const Gemm& product);

/// Numbers of f32 rounded to bf16 as round_to does it.
void round_factors(const float* from, std::int64_t count, std::uint16_t* to);

/// In the calling thread alone, with its signals blocked; sums in f32. Bits also follow the
/// processor's caches, which is why the name has them. Memory comes from the context's pool but for
/// the library's own objects of the call.
void multiply_in_bf16(const PassContext& context,
                      const Gemm& product,
                      const std::uint16_t* a,
                      const std::uint16_t* b,
                      float* c);

/// "oneDNN 2.6.3 avx512_core_bf16 (caches of 32 and 1024 KiB)": the loaded library, the widest
/// instructions that it uses here, which the processor and the environment decide, and the sizes
/// that it cuts its work by.
[[nodiscard]] std::string name();

}  // namespace onednn
}  // namespace millrace
