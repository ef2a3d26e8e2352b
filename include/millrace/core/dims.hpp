// The extents of a tensor. No strides: everything here is row-major and dense.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "millrace/core/error.hpp"

namespace millrace {

/// Up to six extents, row-major. A shape without extents is a scalar (one element).
class Dims {
 public:
  static constexpr std::size_t kMax = 6;

  constexpr Dims() = default;

  Dims(std::initializer_list<std::int64_t> extents)
      : Dims(std::span(extents.begin(), extents.size())) {}

  explicit Dims(std::span<const std::int64_t> extents) : size_(extents.size()) {
    require(size_ <= kMax, "a tensor has at most 6 extents");
    std::copy(extents.begin(), extents.end(), extents_.begin());
  }

  [[nodiscard]] constexpr std::size_t size() const { return size_; }
  [[nodiscard]] constexpr std::int64_t operator[](std::size_t i) const { return extents_[i]; }
  [[nodiscard]] constexpr std::int64_t* begin() { return extents_.data(); }
  [[nodiscard]] constexpr std::int64_t* end() { return extents_.data() + size_; }
  [[nodiscard]] constexpr const std::int64_t* begin() const { return extents_.data(); }
  [[nodiscard]] constexpr const std::int64_t* end() const { return extents_.data() + size_; }

  /// Product of the extents, unchecked; 1 for a scalar. For memory ask bytes_of (tensor.hpp).
  [[nodiscard]] constexpr std::int64_t elements() const {
    std::int64_t product = 1;
    for (const std::int64_t extent : *this) product *= extent;
    return product;
  }

  friend constexpr bool operator==(const Dims& a, const Dims& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  std::array<std::int64_t, kMax> extents_{};
  std::size_t size_ = 0;
};

/// "8x64" for messages.
[[nodiscard]] inline std::string to_string(const Dims& dims) {
  std::string text;
  for (const std::int64_t extent : dims) {
    if (!text.empty()) text += 'x';
    text += std::to_string(extent);
  }
  return text.empty() ? "scalar" : text;
}

}  // namespace millrace
