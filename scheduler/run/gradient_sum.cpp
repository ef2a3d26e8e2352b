// Fixed-order sums of gradients.
#include "run/gradient_sum.hpp"

#include <cstring>
#include <string>

namespace millrace::run {

namespace {

template <class T>
void add(Tensor& sum, const Tensor& term) {
  const auto to = sum.as<T>();
  const auto from = term.as<T>();
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
}

void require_alike(const Tensor& a, const Tensor& b, Stage stage) {
  if (a.dtype() == b.dtype() && a.dims() == b.dims()) return;
  throw Mismatch("gradients of stage " + std::to_string(stage.value) +
                 " that are to be added are of " + name_of(a.dtype()) + " " + to_string(a.dims()) +
                 " and " + name_of(b.dtype()) + " " + to_string(b.dims()));
}

}  // namespace

void add_gradient(Tensor& sum, const Tensor& term, Stage stage) {
  require_alike(sum, term, stage);
  require(sum.dtype() == DType::F32 || sum.dtype() == DType::F64,
          [&] { return std::string("a gradient is f32 or f64, not ") + name_of(sum.dtype()); });
  if (sum.dtype() == DType::F32)
    add<float>(sum, term);
  else
    add<double>(sum, term);
}

Tensor copy_into(TensorPool& pool, const Tensor& from) {
  Tensor copy = pool.make(from.dtype(), from.dims());
  if (from.bytes() != 0) std::memcpy(copy.data(), from.data(), from.bytes());
  return copy;
}

}  // namespace millrace::run
