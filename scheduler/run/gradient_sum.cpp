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

TensorList copy_gradients(StageBody& body, TensorPool& pool) {
  TensorList gradients;
  for (const Parameter* parameter : body.parameters())
    gradients.push_back(copy_into(pool, parameter->gradient));
  return gradients;
}

void add_in_replica_order(const Reduction& reduction,
                          std::vector<TensorList>& received,
                          TensorPool& pool) {
  const std::size_t replicas = reduction.bodies.size();
  std::vector<std::vector<Parameter*>> local(replicas);
  for (std::size_t i = 0; i < replicas; ++i)
    if (reduction.bodies[i] != nullptr) local[i] = reduction.bodies[i]->parameters();

  const auto count = [&](std::size_t i) {
    return reduction.bodies[i] != nullptr ? local[i].size() : received[i].size();
  };
  const auto gradient = [&](std::size_t i, std::size_t parameter) -> Tensor& {
    return reduction.bodies[i] != nullptr ? local[i][parameter]->gradient : received[i][parameter];
  };

  for (std::size_t i = 1; i < replicas; ++i)
    if (count(i) != count(0))
      throw Mismatch("copies of stage " + std::to_string(reduction.stage.value) + " have " +
                     std::to_string(count(0)) + " and " + std::to_string(count(i)) + " parameters");
  for (std::size_t parameter = 0; parameter < count(0); ++parameter) {
    Tensor sum = copy_into(pool, gradient(0, parameter));
    for (std::size_t i = 1; i < replicas; ++i)
      add_gradient(sum, gradient(i, parameter), reduction.stage);
    for (std::size_t i = 0; i < replicas; ++i)
      if (reduction.bodies[i] != nullptr && sum.bytes() != 0)
        std::memcpy(gradient(i, parameter).data(), sum.data(), sum.bytes());
  }
}

}  // namespace millrace::run
