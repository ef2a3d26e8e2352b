// Narrow numbers through Eigen's conversions, which use the processor's own where it has them and
// give the same bits where it has not.
#include "stages/kernels/rounding.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include <Eigen/Core>

#include "millrace/core/error.hpp"
#include "millrace/stages/precision.hpp"
#include "stages/kernels/blocks.hpp"

namespace millrace {
namespace {

template <class Number>
using Numbers = Eigen::Map<Eigen::Array<Number, Eigen::Dynamic, 1>>;
template <class Number>
using ConstNumbers = Eigen::Map<const Eigen::Array<Number, Eigen::Dynamic, 1>>;

template <class From, class To>
void convert(const void* from, void* to, std::int64_t count) {
  Numbers<To>(static_cast<To*>(to), count) =
      ConstNumbers<From>(static_cast<const From*>(from), count).template cast<To>();
}

/// Through a block that stays in the first cache.
template <class Narrow>
void round_through(std::span<float> values) {
  constexpr std::size_t kBlock = 1024;
  std::array<Narrow, kBlock> block;
  for (std::size_t first = 0; first < values.size(); first += kBlock) {
    const std::size_t count = std::min(kBlock, values.size() - first);
    convert<float, Narrow>(&values[first], block.data(), static_cast<std::int64_t>(count));
    convert<Narrow, float>(block.data(), &values[first], static_cast<std::int64_t>(count));
  }
}

/// body(Narrow{}) with Eigen's type for f16 or bf16.
template <class Body>
void with_narrow(DType dtype, Body body) {
  require(is_narrow(dtype),
          [&] { return std::string("narrow numbers are f16 or bf16, not ") + name_of(dtype); });
  if (dtype == DType::F16) return body(Eigen::half{});
  body(Eigen::bfloat16{});
}

}  // namespace

void round_to(DType precision, std::span<float> values) {
  if (precision == DType::F32) return;
  with_narrow(precision, [&](auto zero) { round_through<decltype(zero)>(values); });
}

void detail::narrow(DType precision, const float* from, std::int64_t count, void* to) {
  with_narrow(precision, [&](auto zero) { convert<float, decltype(zero)>(from, to, count); });
}

Tensor narrowed(const PassContext& context, const Tensor& wide, DType precision) {
  Tensor narrow = context.make(precision, wide.dims());
  const auto size = static_cast<std::int64_t>(size_of(precision));
  auto* to = static_cast<std::byte*>(narrow.data());
  const float* from = wide.as<float>().data();
  detail::for_numbers(context, wide.elements(), [&](std::int64_t first, std::int64_t last) {
    detail::narrow(precision, from + first, last - first, to + first * size);
  });
  return narrow;
}

Tensor widened(const PassContext& context, const Tensor& narrow) {
  Tensor wide = context.make(DType::F32, narrow.dims());
  with_narrow(narrow.dtype(), [&](auto zero) {
    using Narrow = decltype(zero);
    const auto* from = static_cast<const Narrow*>(narrow.data());
    float* to = wide.as<float>().data();
    detail::for_numbers(context, narrow.elements(), [&](std::int64_t first, std::int64_t last) {
      convert<Narrow, float>(from + first, to + first, last - first);
    });
  });
  return wide;
}

DType precision_of(std::string_view name) {
  for (const DType dtype : {DType::F32, DType::BF16, DType::F16})
    if (name == name_of(dtype)) return dtype;
  throw InvalidArgument("unknown precision '" + std::string(name) + "'; known are f32, bf16, f16");
}

}  // namespace millrace
