// Narrow numbers: conversions that give the same bits on every processor.
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

#include <Eigen/Core>

#include "millrace/core/error.hpp"
#include "millrace/stages/layer.hpp"
#include "stages/kernels/blocks.hpp"
#include "stages/kernels/precision.hpp"

namespace millrace {
namespace {

template <class Number>
using Numbers = Eigen::Map<Eigen::Array<Number, Eigen::Dynamic, 1>>;
template <class Number>
using ConstNumbers = Eigen::Map<const Eigen::Array<Number, Eigen::Dynamic, 1>>;

/// f16, through Eigen's conversions, which use the processor's own where it has them.
struct Half {
  using Number = Eigen::half;

  static void narrow(const float* from, std::int64_t count, Number* to) {
    Numbers<Number>(to, count) = ConstNumbers<float>(from, count).cast<Number>();
  }
  static void widen(const Number* from, std::int64_t count, float* to) {
    Numbers<float>(to, count) = ConstNumbers<Number>(from, count).cast<float>();
  }
  /// Through a block that stays in the first cache.
  static void round(float* values, std::int64_t count) {
    constexpr std::int64_t kBlock = 1024;
    std::array<Number, kBlock> block;
    for (std::int64_t first = 0; first < count; first += kBlock) {
      const std::int64_t size = std::min(kBlock, count - first);
      narrow(values + first, size, block.data());
      widen(block.data(), size, values + first);
    }
  }
};

/// bf16 is the upper half of an f32, to the nearest and from the middle to the even one.
struct BFloat16 {
  using Number = std::uint16_t;

  static std::uint32_t nearest(float value) {
    constexpr std::uint32_t kUpper = 0xffff0000U, kSign = 0x80000000U, kInfinity = 0x7f800000U;
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t nearest = (bits + 0x7fffU + ((bits >> 16U) & 1U)) & kUpper;
    const std::uint32_t nan = (bits & kSign) | 0x7fc00000U;
    return (bits & ~kSign) > kInfinity ? nan : nearest;
  }

  static void narrow(const float* from, std::int64_t count, Number* to) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<Number>(nearest(from[i]) >> 16U);
  }
  static void widen(const Number* from, std::int64_t count, float* to) {
    for (std::int64_t i = 0; i < count; ++i)
      to[i] = std::bit_cast<float>(std::uint32_t{from[i]} << 16U);
  }
  static void round(float* values, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) values[i] = std::bit_cast<float>(nearest(values[i]));
  }
};

/// body(Half{}) or body(BFloat16{}).
template <class Body>
void with_narrow(DType dtype, Body body) {
  require(is_narrow(dtype),
          [&] { return std::string("narrow numbers are f16 or bf16, not ") + name_of(dtype); });
  if (dtype == DType::F16) return body(Half{});
  body(BFloat16{});
}

}  // namespace

void round_to(DType precision, std::span<float> values) {
  if (precision == DType::F32) return;
  with_narrow(precision, [&](auto kind) {
    kind.round(values.data(), static_cast<std::int64_t>(values.size()));
  });
}

void narrow(DType precision, const float* from, std::int64_t count, void* to) {
  with_narrow(precision, [&](auto kind) {
    kind.narrow(from, count, static_cast<typename decltype(kind)::Number*>(to));
  });
}

Tensor narrowed(const PassContext& context, const Tensor& wide, DType precision) {
  Tensor result = context.make(precision, wide.dims());
  const auto size = static_cast<std::int64_t>(size_of(precision));
  auto* to = static_cast<std::byte*>(result.data());
  const float* from = wide.as<float>().data();
  for_numbers(context, wide.elements(), [&](std::int64_t first, std::int64_t last) {
    narrow(precision, from + first, last - first, to + first * size);
  });
  return result;
}

Tensor widened(const PassContext& context, const Tensor& narrow) {
  Tensor wide = context.make(DType::F32, narrow.dims());
  with_narrow(narrow.dtype(), [&](auto kind) {
    const auto* from = static_cast<const typename decltype(kind)::Number*>(narrow.data());
    float* to = wide.as<float>().data();
    for_numbers(context, narrow.elements(), [&](std::int64_t first, std::int64_t last) {
      kind.widen(from + first, last - first, to + first);
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
