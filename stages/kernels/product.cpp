// Matrix products: Eigen's packed kernels with a fixed blocking and pooled packing memory.
#include "stages/kernels/product.hpp"

#include <algorithm>

#include <Eigen/Core>

namespace millrace::detail {
namespace {

using Eigen::Index;

/// Largest blocks, in elements: a kc x nr panel stays in the first-level cache, mc x kc in the
/// second. Part of what decides the bits: change them and every hash changes.
constexpr Index kDepthBlock = 256;
constexpr Index kRowBlock = 192;
constexpr Index kColumnBlock = 512;

/// The block for `extent`: as few equal blocks of at most `largest` as cover it, in whole `step`s.
Index block_of(Index extent, Index largest, Index step) {
  const Index blocks = std::max<Index>(1, (extent + largest - 1) / largest);
  const Index even = (extent + blocks - 1) / blocks;
  return std::max(step, (even + step - 1) / step * step);
}

/// Block sizes and packing memory for a column-major product [m, depth] x [depth, n].
template <class T>
class Blocking : public Eigen::internal::level3_blocking<T, T> {
 public:
  Blocking(const PassContext& context, Index m, Index n, Index depth) {
    this->m_mc = block_of(m, kRowBlock, 48);
    this->m_nc = block_of(n, kColumnBlock, 4);
    this->m_kc = block_of(depth, kDepthBlock, 8);
    constexpr Index kLine = kAlignment / sizeof(T);
    const Index left = (this->m_mc * this->m_kc + kLine - 1) / kLine * kLine;
    const Index right = this->m_nc * this->m_kc;
    memory_ = context.make(dtype_of<T>(), {left + right});
    this->m_blockA = static_cast<T*>(memory_.data());
    this->m_blockB = this->m_blockA + left;
  }

 private:
  Tensor memory_;
};

/// A matrix as the kernels see it: the order of its memory and the distance between columns (rows).
template <class T>
struct Operand {
  const T* data;
  Index stride;
};

/// Of a product a b: rows of a, columns of b, and what is summed over.
struct Extents {
  Index m, n, depth;
};

/// c += a b with c [m, n] column-major.
template <class T, int kOrderA, int kOrderB>
void add_product(
    const PassContext& context, const Extents& extents, Operand<T> a, Operand<T> b, T* c) {
  const auto [m, n, depth] = extents;
  if (m == 0 || n == 0 || depth == 0) return;
  Blocking<T> blocking(context, m, n, depth);
  using Product = Eigen::internal::general_matrix_matrix_product<Index,
                                                                 T,
                                                                 kOrderA,
                                                                 false,
                                                                 T,
                                                                 kOrderB,
                                                                 false,
                                                                 Eigen::ColMajor,
                                                                 1>;
  Product::run(m, n, depth, a.data, a.stride, b.data, b.stride, c, 1, m, T(1), blocking, nullptr);
}

}  // namespace

// Row-major y = x W is column-major y^T = W^T x^T on the same memory; likewise for the other two.

template <class T>
void add_forward(
    const PassContext& context, const ProductShape& shape, const T* x, const T* w, T* y) {
  add_product<T, Eigen::ColMajor, Eigen::ColMajor>(
      context, {shape.out, shape.rows, shape.in}, {w, shape.out}, {x, shape.in}, y);
}

template <class T>
void add_input_gradient(
    const PassContext& context, const ProductShape& shape, const T* dz, const T* w, T* dx) {
  add_product<T, Eigen::RowMajor, Eigen::ColMajor>(
      context, {shape.in, shape.rows, shape.out}, {w, shape.out}, {dz, shape.out}, dx);
}

template <class T>
void add_weight_gradient(
    const PassContext& context, const ProductShape& shape, const T* x, const T* dz, T* dw) {
  add_product<T, Eigen::ColMajor, Eigen::RowMajor>(
      context, {shape.out, shape.in, shape.rows}, {dz, shape.out}, {x, shape.in}, dw);
}

template void add_forward<float>(
    const PassContext&, const ProductShape&, const float*, const float*, float*);
template void add_forward<double>(
    const PassContext&, const ProductShape&, const double*, const double*, double*);
template void add_input_gradient<float>(
    const PassContext&, const ProductShape&, const float*, const float*, float*);
template void add_input_gradient<double>(
    const PassContext&, const ProductShape&, const double*, const double*, double*);
template void add_weight_gradient<float>(
    const PassContext&, const ProductShape&, const float*, const float*, float*);
template void add_weight_gradient<double>(
    const PassContext&, const ProductShape&, const double*, const double*, double*);

}  // namespace millrace::detail
