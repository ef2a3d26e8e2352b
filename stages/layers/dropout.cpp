// Dropout: a mask drawn by counter, kept as bytes.
#include "millrace/stages/dropout.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "millrace/core/random.hpp"
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

void check(const Dropout& layer, DType dtype, const char* what, const Tensor& tensor) {
  const bool fits = tensor && tensor.dtype() == dtype && tensor.dims().size() >= 2;
  detail::check_tensor(
      layer, what, tensor, fits, [&] { return std::string(name_of(dtype)) + " samples"; });
}

}  // namespace

Dropout::Dropout(const Settings& settings) : settings_(settings) {
  detail::require_float(settings.dtype, describe());
  require(settings.rate >= 0 && settings.rate < 1,
          describe() + ": the rate must be from 0 to below 1");
}

std::vector<TensorType> Dropout::infer(std::span<const TensorType> inputs) const {
  if (inputs.size() != 1 || inputs[0].dtype != settings_.dtype || inputs[0].dims.size() < 2)
    detail::refuse_inputs(*this, std::string(name_of(settings_.dtype)) + " samples", inputs);
  return {{inputs[0].dtype, inputs[0].dims}};
}

Tensor Dropout::mask_for(const PassContext& context, const Tensor& input) const {
  Tensor mask = context.make(DType::U8, input.dims());
  const auto threshold = static_cast<std::uint64_t>(std::ldexp(settings_.rate, 32));
  const std::int64_t places = input.columns();
  // With slices the second extent is positions.
  const std::int64_t first =
      context.first_position == 0 || places == 0
          ? 0
          : context.first_position * (places / std::max<std::int64_t>(input.dims()[1], 1));
  for (std::int64_t i = 0; i < input.rows(); ++i)
    draw(context.key(Purpose::Dropout, static_cast<std::uint32_t>(i), settings_.layer),
         threshold,
         first,
         places,
         detail::values<std::uint8_t>(mask) + i * places);
  return mask;
}

TensorList Dropout::forward(const PassContext& context, TensorList inputs, Stash& stash) {
  Tensor input = detail::only(*this, "input", std::move(inputs));
  check(*this, settings_.dtype, "input", input);
  if (!context.training) return TensorList(std::move(input));
  Tensor mask = mask_for(context, input);
  Tensor output = context.make(settings_.dtype, input.dims());
  detail::with_precision(settings_.dtype, [&](auto zero) {
    using T = decltype(zero);
    apply<T>(detail::values<T>(std::as_const(input)),
             detail::values<std::uint8_t>(mask),
             T(1 / (1 - settings_.rate)),
             input.elements(),
             detail::values<T>(output));
  });
  stash.keep(context, std::move(mask));
  return TensorList(std::move(output));
}

TensorList Dropout::backward_input(const PassContext& context,
                                   TensorList output_gradients,
                                   Stash& stash,
                                   bool wanted) {
  Tensor gradient = detail::only(*this, "output gradient", std::move(output_gradients));
  check(*this, settings_.dtype, "output gradient", gradient);
  if (wanted) {
    const Tensor mask = stash.read(context, 0);
    detail::with_precision(settings_.dtype, [&](auto zero) {
      using T = decltype(zero);
      T* values = detail::values<T>(gradient);
      apply<T>(values,
               detail::values<std::uint8_t>(mask),
               T(1 / (1 - settings_.rate)),
               gradient.elements(),
               values);
    });
  }
  stash.clear(context);
  return wanted ? TensorList(std::move(gradient)) : TensorList();
}

LayerBytes Dropout::bytes(std::span<const TensorType> inputs) const {
  return {.after_forward = static_cast<std::size_t>(inputs[0].dims.elements())};
}

std::string Dropout::describe() const {
  return "layers." + std::to_string(settings_.layer) + ": dropout " +
         std::to_string(settings_.rate);
}

LayerKind dropout_kind() {
  return {"dropout",
          {"rate"},
          [](const LayerSettings& settings, std::span<const TensorType>, const LayerPlace& place) {
            return std::make_unique<Dropout>(Dropout::Settings{
                .rate = settings.number("rate"), .dtype = place.dtype, .layer = place.number});
          }};
}

}  // namespace millrace
