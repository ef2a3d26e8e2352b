// Positions: one addition a number each way.
#include "millrace/stages/positions.hpp"

#include <cmath>
#include <utility>

#include "stages/copy.hpp"
#include "stages/kernels/precision.hpp"
#include "stages/layers/check.hpp"
#include "stages/layers/kinds.hpp"
#include "stages/layers/parameters.hpp"

namespace millrace {
namespace {

/// to[i] = from[i] + more[i]; `to` may be one of them.
template <class T>
void add_row(const T* from, const T* more, std::int64_t count, T* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = from[i] + more[i];
}

}  // namespace

Positions::Positions(const Settings& settings) : settings_(settings) {
  const std::string who = "layers." + std::to_string(settings.layer) + ": positions";
  detail::require_float(settings.dtype, who);
  require(settings.context >= 1 && settings.columns >= 1,
          who + " need a context and columns of at least 1");
  weight_ = detail::parameter_of(settings.layer, "weight", true);
}

void Positions::initialize(std::uint64_t seed) {
  detail::allocate(weight_, settings_.dtype, {settings_.context, settings_.columns});
  const RandomKey key{.seed = seed, .purpose = Purpose::Initialize, .layer = settings_.layer};
  detail::fill_uniform(weight_.value, key, 0.02 * std::sqrt(3.0));
}

std::vector<TensorType> Positions::infer(std::span<const TensorType> inputs) const {
  if (inputs.size() != 1 || inputs[0].dtype != settings_.dtype || inputs[0].dims.size() != 3 ||
      inputs[0].columns() != settings_.columns)
    detail::refuse_inputs(*this,
                          name_of(settings_.dtype) + std::string(" [samples, positions, ") +
                              std::to_string(settings_.columns) + "]",
                          inputs);
  return {{inputs[0].dtype, inputs[0].dims}};
}

void Positions::check(const char* what, const Tensor& tensor) const {
  const bool fits = tensor && tensor.dtype() == settings_.dtype && tensor.dims().size() == 3 &&
                    tensor.dims()[2] == settings_.columns;
  detail::check_tensor(*this, what, tensor, fits, [&] {
    return name_of(settings_.dtype) + std::string(" [samples, positions, ") +
           std::to_string(settings_.columns) + "]";
  });
}

TensorList Positions::forward(const PassContext& context, TensorList inputs, Stash&) {
  const Tensor input = detail::only(*this, "input", std::move(inputs));
  check("input", input);
  const Dims& dims = input.dims();
  if (context.first_position + dims[1] > settings_.context)
    throw InvalidArgument(describe() + ": a sequence of " +
                          std::to_string(context.first_position + dims[1]) + " positions");
  Tensor output = context.make(settings_.dtype, dims);
  const std::int64_t count = dims[1] * dims[2];
  detail::with_precision(settings_.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* table =
        detail::values<T>(std::as_const(weight_.value)) + context.first_position * dims[2];
    for (std::int64_t n = 0; n < dims[0]; ++n)
      add_row(detail::values<T>(input) + n * count,
              table,
              count,
              detail::values<T>(output) + n * count);
  });
  return TensorList(std::move(output));
}

TensorList Positions::backward_input(const PassContext& context,
                                     TensorList output_gradients,
                                     Stash& stash,
                                     bool wanted) {
  Tensor gradient = detail::only(*this, "output gradient", std::move(output_gradients));
  check("output gradient", gradient);
  TensorList gradients;
  if (wanted) gradients.push_back(detail::copy_of(context, gradient));
  stash.keep(context, std::move(gradient));
  return gradients;
}

void Positions::backward_weight(const PassContext& context, Stash& stash) {
  const Tensor gradient = stash.read(context, 0);
  const Dims& dims = gradient.dims();
  const std::int64_t count = dims[1] * dims[2];
  detail::with_precision(settings_.dtype, [&](auto zero) {
    using T = decltype(zero);
    T* table = detail::values<T>(weight_.gradient) + context.first_position * dims[2];
    for (std::int64_t n = 0; n < dims[0]; ++n)
      add_row(table, detail::values<T>(gradient) + n * count, count, table);
  });
  stash.clear(context);
}

LayerBytes Positions::bytes(std::span<const TensorType> inputs) const {
  return {.after_input = size_of(kept_dtype(settings_.dtype)) *
                         static_cast<std::size_t>(inputs[0].dims.elements())};
}

std::string Positions::describe() const {
  return "layers." + std::to_string(settings_.layer) + ": positions up to " +
         std::to_string(settings_.context) + " of " + std::to_string(settings_.columns);
}

LayerKind positions_kind() {
  return {"positions",
          {"context"},
          [](const LayerSettings& settings,
             std::span<const TensorType> inputs,
             const LayerPlace& place) {
            return std::make_unique<Positions>(
                Positions::Settings{.context = settings.integer("context"),
                                    .columns = inputs[0].columns(),
                                    .dtype = place.dtype,
                                    .layer = place.number});
          }};
}

}  // namespace millrace
