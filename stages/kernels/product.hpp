// The three matrix products of a linear map, on row-major memory, with a blocking of our own.
//
// Eigen's product kernels are used below their public interface, because the public one takes its
// blocking from the detected cache sizes (global state, and bits follow it) and its packing memory
// from the heap at every call. Here the blocking depends on the shape alone and the packing memory
// comes from the context's pool.
#pragma once

#include <cstdint>

#include "millrace/stages/stage.hpp"

namespace millrace::detail {

/// Extents of a linear map: x [rows, in], W [in, out], y [rows, out].
struct ProductShape {
  std::int64_t rows = 0;
  std::int64_t in = 0;
  std::int64_t out = 0;
};

/// y += x W
template <class T>
void add_forward(
    const PassContext& context, const ProductShape& shape, const T* x, const T* w, T* y);

/// dx += dz W^T
template <class T>
void add_input_gradient(
    const PassContext& context, const ProductShape& shape, const T* dz, const T* w, T* dx);

/// dw += x^T dz
template <class T>
void add_weight_gradient(
    const PassContext& context, const ProductShape& shape, const T* x, const T* dz, T* dw);

}  // namespace millrace::detail
