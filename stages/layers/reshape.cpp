// The same numbers with other extents: rows to images and back.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/stages/layer.hpp"
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

/// y = x, every row [from...] taken as [to...] with as many numbers. Copies nothing, keeps nothing.
/// Thread-safety: externally synchronised.
class Reshape final : public RowLayer {
 public:
  struct Settings {
    Dims from;
    Dims to;
    DType dtype = DType::F32;
    std::uint32_t layer = 0;  ///< global number, for messages
  };

  /// Throws InvalidArgument when an extent is below 1, or the numbers are not as many.
  explicit Reshape(const Settings& settings) : settings_(settings) {
    require_float(settings.dtype, describe());
    require(all_known(settings.from) && all_known(settings.to) &&
                settings.from.elements() == settings.to.elements(),
            describe() + ": rows must have as many numbers before and after");
  }

  Tensor forward_rows(const PassContext&, Tensor input, Stash&) override { return input; }
  Tensor backward_rows(const PassContext&, Tensor output_gradient, Stash&, bool wanted) override {
    return wanted ? std::move(output_gradient) : Tensor();
  }

  [[nodiscard]] DType dtype() const override { return settings_.dtype; }
  [[nodiscard]] std::int64_t input_columns() const override { return settings_.from.elements(); }
  [[nodiscard]] std::int64_t output_columns() const override { return settings_.to.elements(); }
  [[nodiscard]] Dims input_extents() const override { return settings_.from; }
  [[nodiscard]] Dims output_extents() const override { return settings_.to; }
  [[nodiscard]] std::size_t bytes_after_forward(std::int64_t) const override { return 0; }
  [[nodiscard]] std::size_t bytes_after_input(std::int64_t) const override { return 0; }
  [[nodiscard]] std::string describe() const override {
    return "layers." + std::to_string(settings_.layer) + ": reshape " + to_string(settings_.from) +
           "->" + to_string(settings_.to);
  }

 private:
  Settings settings_;
};

}  // namespace

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
