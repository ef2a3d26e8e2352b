// Matrix multiplication: what a product is, and the three of a linear map.
//
// Which library does the work is a choice of the build and of the product's shape, never of the
// caller (see product.cpp). Equal calls give equal bits, on every thread and in every run of one
// build on one kind of processor: what that takes of each library is said in its folder.
#pragma once

#include <cstdint>

#include "millrace/stages/stage.hpp"

namespace millrace {

/// c = op(a) op(b), or c += op(a) op(b): dense row-major matrices, op(a) [rows, depth],
/// op(b) [depth, columns], c [rows, columns].
struct Gemm {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t depth = 0;     ///< what is summed over; 0 of it sum to 0
  bool a_transposed = false;  ///< a is [depth, rows]
  bool b_transposed = false;  ///< b is [columns, depth]
  bool accumulate = true;     ///< false: c is written without being read
  /// BF16: a and b, held in f32, may be rounded to bf16 where such products are faster on this
  /// processor; the sums stay f32. For T = float.
  DType factors = DType::F32;
  /// Numbers between the beginnings of two rows of a as it lies; 0: they are contiguous.
  std::int64_t a_stride = 0;

  [[nodiscard]] std::int64_t stride_of_a() const {
    if (a_stride != 0) return a_stride;
    return a_transposed ? rows : depth;
  }
};

/// T is float or double. Packing memory comes from the context's pool, or from the library. A large
/// product is cut into blocks of rows, by its extents alone, which the context's workers share.
/// Thread-safety: any number of calls at the same time.
template <class T>
void multiply(const PassContext& context, const Gemm& product, const T* a, const T* b, T* c);

/// Extents of a linear map: x [rows, in], W [in, out], y [rows, out].
struct ProductShape {
  std::int64_t rows = 0;
  std::int64_t in = 0;
  std::int64_t out = 0;
  DType factors = DType::F32;  ///< see Gemm
};

/// y += x W
template <class T>
void add_forward(
    const PassContext& context, const ProductShape& shape, const T* x, const T* w, T* y) {
  multiply<T>(
      context,
      {.rows = shape.rows, .columns = shape.out, .depth = shape.in, .factors = shape.factors},
      x,
      w,
      y);
}

/// The product dz W^T of a linear map.
inline Gemm input_gradient_of(const ProductShape& shape) {
  return {.rows = shape.rows,
          .columns = shape.in,
          .depth = shape.out,
          .b_transposed = true,
          .factors = shape.factors};
}

/// dx += dz W^T
template <class T>
void add_input_gradient(
    const PassContext& context, const ProductShape& shape, const T* dz, const T* w, T* dx) {
  multiply<T>(context, input_gradient_of(shape), dz, w, dx);
}

/// dx = dz W^T
template <class T>
void make_input_gradient(
    const PassContext& context, const ProductShape& shape, const T* dz, const T* w, T* dx) {
  Gemm product = input_gradient_of(shape);
  product.accumulate = false;
  multiply<T>(context, product, dz, w, dx);
}

/// dw += x^T dz
template <class T>
void add_weight_gradient(
    const PassContext& context, const ProductShape& shape, const T* x, const T* dz, T* dw) {
  multiply<T>(context,
              {.rows = shape.in,
               .columns = shape.out,
               .depth = shape.rows,
               .a_transposed = true,
               .factors = shape.factors},
              x,
              dz,
              dw);
}

}  // namespace millrace
