// Going through the windows of an image: what every output pixel sees, and im2col with its
// transpose.
#pragma once

#include <algorithm>
#include <cstdint>

#include "millrace/stages/layer.hpp"

namespace millrace {

/// An image seen through windows.
struct WindowedImage {
  ImageShape image;  ///< of the input
  Window window;
  ImageShape output = {};

  /// Numbers that one window sees.
  [[nodiscard]] std::int64_t depth() const { return window.pixels() * image.channels; }
};

/// A range of pixels [first, last) of a window that lie inside the image, and where they begin.
struct WindowSpan {
  std::int64_t first = 0;  ///< counted in the window
  std::int64_t last = 0;
  std::int64_t start = 0;  ///< of pixel 0 of the window in the image; may be negative
};

[[nodiscard]] inline WindowSpan window_span(std::int64_t output_pixel,
                                            const Window& window,
                                            std::int64_t kernel,
                                            std::int64_t extent) {
  const std::int64_t start = output_pixel * window.stride - window.padding;
  return {.first = std::max<std::int64_t>(0, -start),
          .last = std::min(kernel, extent - start),
          .start = start};
}

/// body(rows, columns) for every output pixel in row-major order.
template <class Body>
void for_each_window(const WindowedImage& of, const Body& body) {
  for (std::int64_t i = 0; i < of.output.height; ++i) {
    const WindowSpan rows = window_span(i, of.window, of.window.kernel_height, of.image.height);
    for (std::int64_t j = 0; j < of.output.width; ++j)
      body(rows, window_span(j, of.window, of.window.kernel_width, of.image.width));
  }
}

/// One row for every output pixel: the window's pixels [kernel height, kernel width, channels], 0
/// outside the image.
template <class T>
void to_windows(const WindowedImage& of, const T* pixels, T* rows) {
  const std::int64_t width = of.window.kernel_width * of.image.channels;
  for_each_window(of, [&](const WindowSpan& down, const WindowSpan& across) {
    const std::int64_t before = across.first * of.image.channels;
    const std::int64_t inside = (across.last - across.first) * of.image.channels;
    for (std::int64_t u = 0; u < of.window.kernel_height; ++u, rows += width) {
      if (u < down.first || u >= down.last) {
        std::fill_n(rows, width, T(0));
        continue;
      }
      const std::int64_t pixel = (down.start + u) * of.image.width + across.start + across.first;
      std::fill_n(rows, before, T(0));
      std::copy_n(pixels + pixel * of.image.channels, inside, rows + before);
      std::fill_n(rows + before + inside, width - before - inside, T(0));
    }
  });
}

/// The transpose: adds every number of the rows to the pixel that it came from.
template <class T>
void add_from_windows(const WindowedImage& of, const T* rows, T* pixels) {
  const std::int64_t width = of.window.kernel_width * of.image.channels;
  for_each_window(of, [&](const WindowSpan& down, const WindowSpan& across) {
    const std::int64_t before = across.first * of.image.channels;
    const std::int64_t inside = (across.last - across.first) * of.image.channels;
    for (std::int64_t u = down.first; u < down.last; ++u) {
      const std::int64_t pixel = (down.start + u) * of.image.width + across.start + across.first;
      T* to = pixels + pixel * of.image.channels;
      const T* from = rows + u * width + before;
      for (std::int64_t k = 0; k < inside; ++k) to[k] += from[k];
    }
    rows += of.window.kernel_height * width;
  });
}

}  // namespace millrace
