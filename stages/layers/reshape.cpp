// The same numbers with other extents: rows to images and back.
#include <charconv>
#include <cstdint>
#include <fmt/format.h>
#include <string>
#include <vector>

#include "millrace/stages/layer.hpp"
#include "stages/kernels/precision.hpp"
#include "stages/layers/check.hpp"
#include "stages/layers/kinds.hpp"

namespace millrace {
namespace {

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

/// y = x, every row [from...] taken as [to...] with as many numbers. Copies nothing, keeps nothing.
/// Thread-safety: externally synchronised.
class Reshape final : public RowLayer {
 public:
  /// Throws InvalidArgument when an extent is below 1, or the numbers are not as many.
  Reshape(const LayerSettings& settings,
          std::span<const TensorType> inputs,
          const LayerPlace& place)
      : RowLayer(place, extents_of(inputs[0], "rows"), read_extents(settings.word("to", ""))) {
    require_float(dtype(), describe());
    require(all_known(input_extents()) && all_known(output_extents()) &&
                input_columns() == output_columns(),
            describe() + ": rows must have as many numbers before and after");
  }

  Tensor forward_rows(const PassContext&, Tensor input, Stash&) override { return input; }
  Tensor backward_rows(const PassContext&, Tensor output_gradient, Stash&, bool wanted) override {
    return wanted ? std::move(output_gradient) : Tensor();
  }

  [[nodiscard]] std::size_t bytes_after_forward(std::int64_t) const override { return 0; }
  [[nodiscard]] std::string describe() const override {
    return fmt::format("layers.{}: reshape {}->{}",
                       number(),
                       to_string(input_extents()),
                       to_string(output_extents()));
  }
};

}  // namespace

LayerKind reshape_kind() {
  return kind_of<Reshape>("reshape", {"to"});
}

}  // namespace millrace
