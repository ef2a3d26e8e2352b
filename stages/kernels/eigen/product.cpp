// Matrix products by Eigen's packed kernels with a fixed blocking and pooled packing memory.
//
// They are used below their public interface, because the public one takes its blocking from the
// detected cache sizes (global state, and bits follow it) and its packing memory from the heap at
// every call. Here the blocking depends on the shape alone.
#include <algorithm>
#include <string>

#include <Eigen/Core>

#include "stages/kernels/backends.hpp"

namespace millrace::eigen {
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

// Row-major c = a b is column-major c^T = b^T a^T on the same memory.
template <class T>
void multiply(const PassContext& context, const Gemm& product, const T* a, const T* b, T* c) {
  const auto [rows, columns, depth, a_transposed, b_transposed, accumulate, factors, a_stride] =
      product;
  if (!accumulate) std::fill_n(c, rows * columns, T(0));
  const Extents extents{columns, rows, depth};
  const Operand<T> left{b, b_transposed ? depth : columns};
  const Operand<T> right{a, product.stride_of_a()};
  constexpr int kPlain = Eigen::ColMajor;
  constexpr int kTurned = Eigen::RowMajor;
  if (a_transposed && b_transposed)
    add_product<T, kTurned, kTurned>(context, extents, left, right, c);
  else if (a_transposed)
    add_product<T, kPlain, kTurned>(context, extents, left, right, c);
  else if (b_transposed)
    add_product<T, kTurned, kPlain>(context, extents, left, right, c);
  else
    add_product<T, kPlain, kPlain>(context, extents, left, right, c);
}

template void multiply<float>(const PassContext&, const Gemm&, const float*, const float*, float*);
template void multiply<double>(
    const PassContext&, const Gemm&, const double*, const double*, double*);

std::string name() {
  return "Eigen " + std::to_string(EIGEN_WORLD_VERSION) + "." +
         std::to_string(EIGEN_MAJOR_VERSION) + "." + std::to_string(EIGEN_MINOR_VERSION);
}

}  // namespace millrace::eigen
