// Layer and RMS norm: row sums forward and backward, column sums for their parameters.
#include "millrace/stages/layer_norm.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "stages/kernels/blocks.hpp"
#include "stages/kernels/column_sum.hpp"
#include "stages/kernels/precision.hpp"
#include "stages/kernels/row_sum.hpp"
#include "stages/layers/kinds.hpp"
#include "stages/layers/parameters.hpp"

namespace millrace {
namespace {

// Places in the stash: the normalised rows stay from F to W, the scales from F to I, dy from I to
// W.
constexpr std::size_t kNormalisedRows = 0;
constexpr std::size_t kRowScales = 1;

/// h = (x - mean) scale; returns scale = 1 / sqrt(var + epsilon).
template <class T>
T normalise_row(const T* x, const LayerNorm::Settings& settings, T* h) {
  const std::int64_t columns = settings.columns;
  const T count = static_cast<T>(columns);
  const T mean = settings.centred
                     ? detail::row_sum<T>(columns, [&](std::int64_t j) { return x[j]; }) / count
                     : T(0);
  for (std::int64_t j = 0; j < columns; ++j) h[j] = x[j] - mean;
  const T variance =
      detail::row_sum<T>(columns, [&](std::int64_t j) { return h[j] * h[j]; }) / count;
  const T scale = T(1) / std::sqrt(variance + static_cast<T>(settings.epsilon));
  for (std::int64_t j = 0; j < columns; ++j) h[j] *= scale;
  return scale;
}

/// dx of one row from dy, its normalised values and the weight.
template <class T>
void row_gradient(
    const T* dy, const T* h, const T* weight, T scale, const LayerNorm::Settings& settings, T* dx) {
  const std::int64_t columns = settings.columns;
  const T count = static_cast<T>(columns);
  for (std::int64_t j = 0; j < columns; ++j) dx[j] = dy[j] * weight[j];
  const T mean = settings.centred
                     ? detail::row_sum<T>(columns, [&](std::int64_t j) { return dx[j]; }) / count
                     : T(0);
  const T along = detail::row_sum<T>(columns, [&](std::int64_t j) { return dx[j] * h[j]; }) / count;
  for (std::int64_t j = 0; j < columns; ++j) dx[j] = (dx[j] - mean - h[j] * along) * scale;
}

}  // namespace

LayerNorm::LayerNorm(const Settings& settings) : settings_(settings) {
  detail::require_float(settings.dtype, describe());
  require(settings.columns >= 1, describe() + ": a norm needs at least 1 column");
  require(settings.epsilon > 0, describe() + ": epsilon must be above 0");
  weight_ = detail::parameter_of(settings.layer, "weight", false);
  bias_ = detail::parameter_of(settings.layer, "bias", false);
}

std::vector<Parameter*> LayerNorm::parameters() {
  if (!settings_.centred) return {&weight_};
  return {&weight_, &bias_};
}

void LayerNorm::initialize(std::uint64_t) {
  for (Parameter* parameter : parameters())
    detail::allocate(*parameter, settings_.dtype, {settings_.columns});
  detail::with_precision(settings_.dtype, [&](auto zero) {
    using T = decltype(zero);
    std::ranges::fill(weight_.value.as<T>(), T(1));
  });
}

Tensor LayerNorm::forward_rows(const PassContext& context, Tensor input, Stash& stash) {
  const std::int64_t columns = settings_.columns;
  Tensor output = context.make(settings_.dtype, input.dims());
  Tensor normalised = context.make(settings_.dtype, {input.rows(), columns});
  Tensor scales = context.make(settings_.dtype, {input.rows()});
  detail::with_precision(settings_.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* weight = detail::values<T>(weight_.value);
    const T* bias = detail::values<T>(bias_.value);
    const auto norm_row = [&](std::int64_t i) {
      T* h = detail::values<T>(normalised) + i * columns;
      detail::values<T>(scales)[i] =
          normalise_row<T>(detail::values<T>(std::as_const(input)) + i * columns, settings_, h);
      T* y = detail::values<T>(output) + i * columns;
      if (settings_.centred) {
        for (std::int64_t j = 0; j < columns; ++j) y[j] = h[j] * weight[j] + bias[j];
      } else {
        for (std::int64_t j = 0; j < columns; ++j) y[j] = h[j] * weight[j];
      }
    };
    detail::for_rows(context, input.rows(), columns, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) norm_row(i);
    });
  });
  if (!context.training) return output;
  stash.keep(context, std::move(normalised));
  stash.keep(context, std::move(scales));
  return output;
}

Tensor LayerNorm::backward_rows(const PassContext& context,
                                Tensor output_gradient,
                                Stash& stash,
                                bool wanted) {
  const Tensor scales = stash.take(context, kRowScales);
  Tensor input_gradient;
  if (wanted) {
    const std::int64_t columns = settings_.columns;
    const Tensor normalised = stash.read(context, kNormalisedRows);
    input_gradient = context.make(settings_.dtype, output_gradient.dims());
    detail::with_precision(settings_.dtype, [&](auto zero) {
      using T = decltype(zero);
      const std::int64_t rows = output_gradient.rows();
      detail::for_rows(context, rows, columns, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; ++i)
          row_gradient<T>(detail::values<T>(std::as_const(output_gradient)) + i * columns,
                          detail::values<T>(normalised) + i * columns,
                          detail::values<T>(std::as_const(weight_.value)),
                          detail::values<T>(scales)[i],
                          settings_,
                          detail::values<T>(input_gradient) + i * columns);
      });
    });
  }
  stash.keep(context, std::move(output_gradient));
  return input_gradient;
}

void LayerNorm::backward_weight(const PassContext& context, Stash& stash) {
  const Tensor normalised = stash.read(context, kNormalisedRows);
  const Tensor gradient = stash.read(context, stash.size() - 1);
  const std::int64_t columns = settings_.columns;
  detail::with_precision(settings_.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* dy = detail::values<T>(gradient);
    T* dg = detail::values<T>(weight_.gradient);
    const std::int64_t rows = gradient.rows();
    detail::for_columns(context, rows, columns, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = 0; i < rows; ++i) {
        const T* h = detail::values<T>(normalised) + i * columns;
        for (std::int64_t j = first; j < last; ++j) dg[j] += dy[i * columns + j] * h[j];
      }
    });
    if (settings_.centred)
      detail::add_column_sums(context, dy, rows, columns, detail::values<T>(bias_.gradient));
  });
  stash.clear(context);
}

std::size_t LayerNorm::bytes_after_forward(std::int64_t rows) const {
  return size_of(kept_dtype(settings_.dtype)) *
         static_cast<std::size_t>(rows * (settings_.columns + 1));
}

std::size_t LayerNorm::bytes_after_input(std::int64_t rows) const {
  return size_of(kept_dtype(settings_.dtype)) *
         static_cast<std::size_t>(2 * rows * settings_.columns);
}

std::string LayerNorm::describe() const {
  return "layers." + std::to_string(settings_.layer) + ": " +
         (settings_.centred ? "layer" : "RMS") + " norm of " + std::to_string(settings_.columns);
}

namespace {

LayerKind norm_kind(const char* name, bool centred) {
  return {name,
          {"epsilon"},
          [centred](const LayerSettings& settings,
                    std::span<const TensorType> inputs,
                    const LayerPlace& place) {
            return std::make_unique<LayerNorm>(
                LayerNorm::Settings{.columns = inputs[0].columns(),
                                    .epsilon = settings.number("epsilon", 1e-5),
                                    .centred = centred,
                                    .dtype = place.dtype,
                                    .layer = place.number});
          }};
}

}  // namespace

LayerKind layer_norm_kind() {
  return norm_kind("layer_norm", true);
}

LayerKind rms_norm_kind() {
  return norm_kind("rms_norm", false);
}

}  // namespace millrace
