// Other extents for the same numbers.
#include "millrace/stages/reshape.hpp"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <vector>

#include "stages/kernels/precision.hpp"
#include "stages/layers/kinds.hpp"

namespace millrace {
namespace {

bool all_known(const Dims& dims) {
  return std::ranges::all_of(dims, [](std::int64_t extent) { return extent >= 1; });
}

/// "8x8x1".
Dims read_extents(const std::string& text) {
  std::vector<std::int64_t> extents;
  const char* at = text.data();
  const char* end = at + text.size();
  for (;; ++at) {
    std::int64_t extent = 0;
    const auto [next, fault] = std::from_chars(at, end, extent);
    require(fault == std::errc{} && extent >= 1 && (next == end || *next == 'x'),
            "the setting 'to' must be extents of at least 1, as in 8x8x1, got '" + text + "'");
    extents.push_back(extent);
    if ((at = next) == end) return Dims(extents);
  }
}

}  // namespace

Reshape::Reshape(const Settings& settings) : settings_(settings) {
  detail::require_float(settings.dtype, describe());
  require(all_known(settings.from) && all_known(settings.to) &&
              settings.from.elements() == settings.to.elements(),
          describe() + ": rows must have as many numbers before and after");
}

std::string Reshape::describe() const {
  return "layers." + std::to_string(settings_.layer) + ": reshape " + to_string(settings_.from) +
         "->" + to_string(settings_.to);
}

LayerKind reshape_kind() {
  return {"reshape",
          {"to"},
          [](const LayerSettings& settings,
             std::span<const TensorType> inputs,
             const LayerPlace& place) {
            const Dims& dims = inputs[0].dims;
            require(dims.size() >= 2, "takes rows, got " + to_string(inputs[0]));
            return std::make_unique<Reshape>(
                Reshape::Settings{.from = Dims(std::span(dims.begin() + 1, dims.end())),
                                  .to = read_extents(settings.word("to", "")),
                                  .dtype = place.dtype,
                                  .layer = place.number});
          }};
}

}  // namespace millrace
