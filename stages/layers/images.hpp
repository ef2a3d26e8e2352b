// Settings that layers of images share.
#pragma once

#include "millrace/stages/layer.hpp"
#include "millrace/stages/layer_kinds.hpp"
#include "stages/layers/check.hpp"

namespace millrace::detail {

/// The image in [samples, height, width, channels]. Throws InvalidArgument for other types.
[[nodiscard]] inline ImageShape image_of(const TensorType& type) {
  require(
      type.dims.size() == 4 && std::all_of(type.dims.begin() + 1,
                                           type.dims.end(),
                                           [](std::int64_t extent) { return extent >= 1; }),
      [&] { return "takes images [samples, height, width, channels], got " + to_string(type); });
  return {.height = type.dims[1], .width = type.dims[2], .channels = type.dims[3]};
}

}  // namespace millrace::detail
