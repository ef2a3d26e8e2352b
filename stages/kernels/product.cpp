// Which library multiplies, and what one call of it is: rules that look at the type and the shape,
// and at nothing else.
#include "stages/kernels/product.hpp"

#include <algorithm>
#include <string>
#include <type_traits>

#include "millrace/stages/products.hpp"
#include "stages/kernels/backends.hpp"
#include "stages/kernels/blocks.hpp"

namespace millrace {
namespace {

/// Rows of a product that one thread multiplies in one call, so that several may share it. Cut so,
/// the products of a transformer take at most a fiftieth longer in one thread: each block packs b
/// again, which weighs more where the product itself is faster.
std::int64_t rows_together(const Gemm& product) {
  const std::int64_t least = product.factors == DType::BF16 ? 256 : 128;
  constexpr std::int64_t kWorth = 1 << 23;
  const std::int64_t row = std::max<std::int64_t>(product.columns * product.depth, 1);
  const std::int64_t together = std::max(least, (kWorth / row + 63) / 64 * 64);
  return product.rows >= 2 * together ? together : product.rows;
}

/// call(context, part, first number of a, first number of c) for each block of rows.
template <class Call>
void for_parts(const PassContext& context, const Gemm& product, const Call& call) {
  const std::int64_t together = rows_together(product);
  const std::int64_t blocks = (product.rows + together - 1) / together;
  const PassContext of_part = is_shared(context, blocks) ? of_one_thread(context) : context;
  for_blocks(context, blocks, [&](std::int64_t block) {
    const std::int64_t first = block * together;
    Gemm part = product;
    part.rows = std::min(together, product.rows - first);
    part.a_stride = product.stride_of_a();
    call(of_part,
         part,
         product.a_transposed ? first : first * part.a_stride,
         first * product.columns);
  });
}

/// The product by a library, block by block.
template <class T, class Library>
void by_parts(const PassContext& context,
              const Gemm& product,
              const T* a,
              const T* b,
              T* c,
              const Library& library) {
  const auto multiply_part =
      [&](const PassContext& of_part, const Gemm& part, std::int64_t of_a, std::int64_t of_c) {
        library(of_part, part, a + of_a, b, c + of_c);
      };
  for_parts(context, product, multiply_part);
}

Tensor in_bf16(const PassContext& context, const float* values, std::int64_t count) {
  Tensor narrow_values = context.make(DType::BF16, {count});
  auto* to = static_cast<std::uint16_t*>(narrow_values.data());
  for_numbers(context, count, [&](std::int64_t first, std::int64_t last) {
    onednn::round_factors(values + first, last - first, to + first);
  });
  return narrow_values;
}

[[maybe_unused]] void multiply_in_bf16(
    const PassContext& context, const Gemm& product, const float* a, const float* b, float* c) {
  const Tensor left = in_bf16(context, a, product.rows * product.depth);
  const Tensor right = in_bf16(context, b, product.depth * product.columns);
  const auto* narrow_a = static_cast<const std::uint16_t*>(left.data());
  const auto* narrow_b = static_cast<const std::uint16_t*>(right.data());
  const auto multiply_part =
      [&](const PassContext& of_part, const Gemm& part, std::int64_t of_a, std::int64_t of_c) {
        onednn::multiply_in_bf16(of_part, part, narrow_a + of_a, narrow_b, c + of_c);
      };
  for_parts(context, product, multiply_part);
}

}  // namespace

template <class T>
void multiply(const PassContext& context, const Gemm& product, const T* a, const T* b, T* c) {
  if (product.rows == 0 || product.columns == 0) return;
  if constexpr (kOneDnn && std::is_same_v<T, float>) {
    if (product.factors == DType::BF16 && onednn::pays_in_bf16(product))
      return multiply_in_bf16(context, product, a, b, c);
    if (onednn::pays(product)) return by_parts<float>(context, product, a, b, c, onednn::multiply);
  }
  by_parts<T>(context, product, a, b, c, eigen::multiply<T>);
}

template void multiply<float>(const PassContext&, const Gemm&, const float*, const float*, float*);
template void multiply<double>(
    const PassContext&, const Gemm&, const double*, const double*, double*);

std::string product_libraries() {
  if constexpr (kOneDnn) return onednn::name() + ", " + eigen::name();
  return eigen::name();
}

}  // namespace millrace
