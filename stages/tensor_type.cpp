// Extents put in, and types in words.
#include "millrace/stages/stage.hpp"

namespace millrace {

namespace {

std::string word_of(std::int64_t extent) {
  if (extent == kSamples) return "samples";
  return extent == kPositions ? "positions" : std::to_string(extent);
}

}  // namespace

TensorType sized(TensorType type, const UnitSize& size) {
  for (std::int64_t& extent : type.dims) {
    if (extent == kSamples) extent = size.samples;
    if (extent == kPositions) extent = size.positions;
  }
  return type;
}

std::size_t bytes_of(const TensorType& type, const UnitSize& size) {
  return bytes_of(type.dtype, sized(type, size).dims);
}

std::string to_string(const TensorType& type) {
  std::string text = std::string(name_of(type.dtype)) + " [";
  for (const std::int64_t extent : type.dims)
    text += (text.back() == '[' ? "" : ", ") + word_of(extent);
  return text + "]";
}

}  // namespace millrace
