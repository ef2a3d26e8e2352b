// The products of a linear map whose matrix lies the other way round.
#include "millrace/stages/unembedding.hpp"

#include <cmath>
#include <utility>

#include "stages/kernels/precision.hpp"
#include "stages/kernels/product.hpp"
#include "stages/layers/check.hpp"
#include "stages/layers/kinds.hpp"
#include "stages/layers/parameters.hpp"

namespace millrace {

Unembedding::Unembedding(const Settings& settings)
    : settings_(settings), weight_(detail::parameter_of(settings.layer, "weight", true)) {
  detail::require_float(settings.dtype, describe());
  require(settings.words >= 1 && settings.columns >= 1,
          describe() + ": a table needs at least 1 row and 1 column");
}

void Unembedding::initialize(std::uint64_t seed) {
  detail::allocate(weight_, settings_.dtype, {settings_.words, settings_.columns});
  const RandomKey key{.seed = seed, .purpose = Purpose::Initialize, .layer = settings_.layer};
  detail::fill_uniform(weight_.value, key, std::sqrt(3.0 / static_cast<double>(settings_.columns)));
}

Tensor Unembedding::forward_rows(const PassContext& context, Tensor input, Stash& stash) {
  Tensor output = context.make(settings_.dtype, {input.rows(), settings_.words});
  detail::with_precision(settings_.dtype, [&](auto zero) {
    using T = decltype(zero);
    detail::multiply<T>(context,
                        {.rows = input.rows(),
                         .columns = settings_.words,
                         .depth = settings_.columns,
                         .b_transposed = true,
                         .accumulate = false,
                         .factors = precision()},
                        detail::values<T>(std::as_const(input)),
                        detail::values<T>(std::as_const(weight_.value)),
                        detail::values<T>(output));
  });
  if (context.training) stash.keep(context, std::move(input));
  return output;
}

Tensor Unembedding::backward_rows(const PassContext& context,
                                  Tensor output_gradient,
                                  Stash& stash,
                                  bool wanted) {
  Tensor input_gradient;
  if (wanted) {
    const std::int64_t rows = output_gradient.rows();
    input_gradient = context.make(settings_.dtype, {rows, settings_.columns});
    detail::with_precision(settings_.dtype, [&](auto zero) {
      using T = decltype(zero);
      detail::multiply<T>(context,
                          {.rows = rows,
                           .columns = settings_.columns,
                           .depth = settings_.words,
                           .accumulate = false,
                           .factors = precision()},
                          detail::values<T>(std::as_const(output_gradient)),
                          detail::values<T>(std::as_const(weight_.value)),
                          detail::values<T>(input_gradient));
    });
  }
  stash.keep(context, std::move(output_gradient));
  return input_gradient;
}

void Unembedding::backward_weight(const PassContext& context, Stash& stash) {
  const Tensor input = stash.read(context, 0);
  const Tensor gradient = stash.read(context, 1);
  detail::with_precision(settings_.dtype, [&](auto zero) {
    using T = decltype(zero);
    detail::multiply<T>(context,
                        {.rows = settings_.words,
                         .columns = settings_.columns,
                         .depth = gradient.rows(),
                         .a_transposed = true,
                         .factors = precision()},
                        detail::values<T>(gradient),
                        detail::values<T>(input),
                        detail::values<T>(weight_.gradient));
  });
  stash.clear(context);
}

std::size_t Unembedding::bytes_after_forward(std::int64_t rows) const {
  return size_of(kept_dtype(settings_.dtype)) * static_cast<std::size_t>(rows * settings_.columns);
}

std::size_t Unembedding::bytes_after_input(std::int64_t rows) const {
  return size_of(kept_dtype(settings_.dtype)) *
         static_cast<std::size_t>(rows * (settings_.columns + settings_.words));
}

double Unembedding::operations(std::span<const TensorType> inputs) const {
  return 2.0 * static_cast<double>(inputs[0].dims.elements()) *
         static_cast<double>(settings_.words);
}

std::string Unembedding::describe() const {
  return "layers." + std::to_string(settings_.layer) + ": unembedding " +
         std::to_string(settings_.columns) + "->" + std::to_string(settings_.words);
}

LayerKind unembedding_kind() {
  return {"unembedding",
          {"words"},
          [](const LayerSettings& settings,
             std::span<const TensorType> inputs,
             const LayerPlace& place) {
            return std::make_unique<Unembedding>(
                Unembedding::Settings{.words = settings.integer("words"),
                                      .columns = inputs[0].columns(),
                                      .dtype = place.dtype,
                                      .layer = place.number});
          }};
}

}  // namespace millrace
