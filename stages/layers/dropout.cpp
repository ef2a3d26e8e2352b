// Dropout whose mask is a pure function of (seed, step, sample, layer, place in the sample).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fmt/format.h>
#include <string>
#include <utility>
#include <vector>

#include "millrace/core/random.hpp"
#include "millrace/stages/layer.hpp"
#include "stages/kernels/precision.hpp"
#include "stages/layers/check.hpp"
#include "stages/layers/kinds.hpp"

namespace millrace {
namespace {

/// Places [first, first + count) of one sample: 1 where the word is at or above the threshold, a
/// share 1 - threshold / 2^32 of them.
void draw(const RandomKey& key,
          std::uint64_t threshold,
          std::int64_t first,
          std::int64_t count,
          std::uint8_t* mask) {
  for (std::int64_t j = first; j < first + count;) {
    const auto words = random_block(key, static_cast<std::uint32_t>(j / 4));
    const std::int64_t end = std::min(first + count, (j / 4 + 1) * 4);
    for (; j < end; ++j)
      mask[j - first] = words[static_cast<std::size_t>(j % 4)] >= threshold ? 1 : 0;
  }
}

template <class T>
void apply(const T* from, const std::uint8_t* mask, T scale, std::int64_t elements, T* to) {
  for (std::int64_t i = 0; i < elements; ++i) to[i] = mask[i] == 0 ? T(0) : from[i] * scale;
}

void check(const Layer& layer, const char* what, const Tensor& tensor) {
  const bool fits = tensor && tensor.dtype() == layer.dtype() && tensor.dims().size() >= 2;
  check_tensor(
      layer, what, tensor, fits, [&] { return std::string(name_of(layer.dtype())) + " samples"; });
}

/// y = x k / (1 - rate) with k = 0 for a share `rate` of the elements and 1 elsewhere; x, y
/// [samples,
/// ...] or [samples, positions, ...]. Identity in evaluation. Srivastava et al., JMLR 15 (2014), in
/// its inverted form.
///
/// The element at place j of its sample (counted over all slices) draws word j of
/// context.key(Purpose::Dropout, sample, layer), so the mask depends neither on micro-batches nor
/// on slices nor on stages, and a recompute draws it again.
/// F keeps k, a byte per element; I: dx = dy k / (1 - rate). No weights.
/// Thread-safety: externally synchronised.
class Dropout final : public Layer {
 public:
  /// Throws InvalidArgument unless 0 <= rate < 1 and the dtype is f32 or f64.
  Dropout(const LayerSettings& settings, std::span<const TensorType>, const LayerPlace& place)
      : Layer(place), rate_(settings.number("rate")) {
    require_float(dtype(), describe());
    require(rate_ >= 0 && rate_ < 1, describe() + ": the rate must be from 0 to below 1");
  }

  [[nodiscard]] std::vector<TensorType> infer(std::span<const TensorType> inputs) const override {
    if (inputs.size() != 1 || inputs[0].dtype != dtype() || inputs[0].dims.size() < 2)
      refuse_inputs(*this, std::string(name_of(dtype())) + " samples", inputs);
    return {{inputs[0].dtype, inputs[0].dims}};
  }
  TensorList forward(const PassContext& context, TensorList inputs, Stash& stash) override {
    Tensor input = only(*this, "input", std::move(inputs));
    check(*this, "input", input);
    if (!context.training) return TensorList(std::move(input));
    Tensor mask = mask_for(context, input);
    Tensor output = context.make(dtype(), input.dims());
    with_precision(dtype(), [&]<class T>(T) {
      apply<T>(values<T>(std::as_const(input)),
               values<std::uint8_t>(mask),
               T(1 / (1 - rate_)),
               input.elements(),
               values<T>(output));
    });
    stash.keep(context, std::move(mask));
    return TensorList(std::move(output));
  }
  TensorList backward_input(const PassContext& context,
                            TensorList output_gradients,
                            Stash& stash,
                            bool wanted) override {
    Tensor gradient = only(*this, "output gradient", std::move(output_gradients));
    check(*this, "output gradient", gradient);
    if (wanted) {
      const Tensor mask = stash.read(context, 0);
      with_precision(dtype(), [&]<class T>(T) {
        T* dy = values<T>(gradient);
        apply<T>(dy, values<std::uint8_t>(mask), T(1 / (1 - rate_)), gradient.elements(), dy);
      });
    }
    stash.clear(context);
    return wanted ? TensorList(std::move(gradient)) : TensorList();
  }

  [[nodiscard]] LayerBytes bytes(std::span<const TensorType> inputs) const override {
    return {.after_forward = static_cast<std::size_t>(inputs[0].dims.elements())};
  }
  [[nodiscard]] std::string describe() const override {
    return fmt::format("layers.{}: dropout {:f}", number(), rate_);
  }

 private:
  [[nodiscard]] Tensor mask_for(const PassContext& context, const Tensor& input) const {
    Tensor mask = context.make(DType::U8, input.dims());
    const auto threshold = static_cast<std::uint64_t>(std::ldexp(rate_, 32));
    const std::int64_t places = input.columns();
    // With slices the second extent is positions.
    const std::int64_t first =
        context.first_position == 0 || places == 0
            ? 0
            : context.first_position * (places / std::max<std::int64_t>(input.dims()[1], 1));
    for (std::int64_t i = 0; i < input.rows(); ++i)
      draw(context.key(Purpose::Dropout, static_cast<std::uint32_t>(i), number()),
           threshold,
           first,
           places,
           values<std::uint8_t>(mask) + i * places);
    return mask;
  }

  double rate_;
};

}  // namespace

LayerKind dropout_kind() {
  return kind_of<Dropout>("dropout", {"rate"});
}

}  // namespace millrace
