// The output shape of windows, and sentences for windows that do not fit.
#include <algorithm>

#include "millrace/core/error.hpp"
#include "millrace/stages/layer.hpp"

namespace millrace {

ImageShape Window::over(const ImageShape& image, const std::string& who) const {
  require(image.height >= 1 && image.width >= 1 && image.channels >= 1,
          who + ": the extents of an image must be known and at least 1, got " +
              to_string(image.dims()));
  require(kernel_height >= 1 && kernel_width >= 1 && stride >= 1, [&] {
    return who + ": kernel and stride must be at least 1, got a kernel of " +
           to_string(Dims{kernel_height, kernel_width}) + " and stride " + std::to_string(stride);
  });
  const std::int64_t smaller = std::min(kernel_height, kernel_width);
  require(padding >= 0 && padding <= smaller / 2, [&] {
    return who + ": padding must be from 0 to half the kernel, " + std::to_string(smaller / 2) +
           ", got " + std::to_string(padding);
  });
  require(image.height + 2 * padding >= kernel_height && image.width + 2 * padding >= kernel_width,
          [&] {
            return who + ": a kernel of " + to_string(Dims{kernel_height, kernel_width}) +
                   " does not fit into an image of " + to_string(Dims{image.height, image.width}) +
                   " with padding " + std::to_string(padding);
          });
  return {.height = (image.height + 2 * padding - kernel_height) / stride + 1,
          .width = (image.width + 2 * padding - kernel_width) / stride + 1,
          .channels = image.channels};
}

}  // namespace millrace
