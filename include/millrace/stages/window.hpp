// Images, channels last, and the windows that convolutions and pooling look at them through.
#pragma once

#include <cstdint>
#include <string>

#include "millrace/core/dims.hpp"

namespace millrace {

/// An image [height, width, channels], row-major. Thread-safety: a value.
struct ImageShape {
  std::int64_t height = 1;
  std::int64_t width = 1;
  std::int64_t channels = 1;

  [[nodiscard]] std::int64_t pixels() const { return height * width; }
  [[nodiscard]] std::int64_t elements() const { return pixels() * channels; }
  [[nodiscard]] Dims dims() const { return {height, width, channels}; }

  friend bool operator==(const ImageShape&, const ImageShape&) = default;
};

/// Windows of kernel_height x kernel_width pixels, `stride` pixels apart in both directions, over
/// an image with `padding` pixels around it: output pixel (i, j) sees the input pixels from
/// (i stride - padding, j stride - padding) on. Thread-safety: a value.
struct Window {
  std::int64_t kernel_height = 1;
  std::int64_t kernel_width = 1;
  std::int64_t stride = 1;
  std::int64_t padding = 0;

  [[nodiscard]] std::int64_t pixels() const { return kernel_height * kernel_width; }

  /// The output's height and width, floor((extent + 2 padding - kernel) / stride) + 1, with as many
  /// channels. Throws InvalidArgument, beginning with `who`, when an extent of the window or the
  /// stride is below 1, the padding is not from 0 to half the kernel, or the window is larger than
  /// the padded image.
  [[nodiscard]] ImageShape over(const ImageShape& image, const std::string& who) const;
};

}  // namespace millrace
