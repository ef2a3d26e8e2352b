// Which library multiplies: a rule that looks at the type and the shape, and at nothing else.
#include "stages/kernels/product.hpp"

#include <string>
#include <type_traits>

#include "millrace/stages/compiled.hpp"
#include "stages/kernels/backends.hpp"

namespace millrace {
namespace detail {

template <class T>
void multiply(const PassContext& context, const Product& product, const T* a, const T* b, T* c) {
  if (product.rows == 0 || product.columns == 0) return;
  if constexpr (kOneDnn && std::is_same_v<T, float>) {
    if (product.factors == DType::BF16 && onednn::pays_in_bf16(product))
      return onednn::multiply_in_bf16(context, product, a, b, c);
    if (onednn::pays(product)) return onednn::multiply(product, a, b, c);
  }
  eigen::multiply<T>(context, product, a, b, c);
}

template void multiply<float>(
    const PassContext&, const Product&, const float*, const float*, float*);
template void multiply<double>(
    const PassContext&, const Product&, const double*, const double*, double*);

}  // namespace detail

std::string product_libraries() {
  if constexpr (detail::kOneDnn) return detail::onednn::name() + ", " + detail::eigen::name();
  return detail::eigen::name();
}

}  // namespace millrace
