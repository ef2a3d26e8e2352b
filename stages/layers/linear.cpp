// Linear: three products, with bias and activation in one pass over the output.
#include "millrace/stages/linear.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "stages/kernels/blocks.hpp"
#include "stages/kernels/column_sum.hpp"
#include "stages/kernels/precision.hpp"
#include "stages/kernels/product.hpp"
#include "stages/layers/activate.hpp"
#include "stages/layers/kinds.hpp"
#include "stages/layers/parameters.hpp"

namespace millrace {
namespace {

// Places in the stash: x stays from F to W, the slopes from F to I, dz from I to W.
constexpr std::size_t kInput = 0;
constexpr std::size_t kSlopes = 1;

template <class T>
void fill_rows(const PassContext& context, Tensor& rows, const Tensor& row) {
  const T* from = detail::values<T>(row);
  T* to = detail::values<T>(rows);
  detail::for_rows(
      context, rows.rows(), row.elements(), [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; ++i)
          std::copy_n(from, row.elements(), to + i * row.elements());
      });
}

}  // namespace

Linear::Linear(const Settings& settings) : settings_(settings) {
  detail::require_float(settings.dtype, describe());
  require(settings.in >= 1 && settings.out >= 1,
          describe() + ": a linear layer needs at least 1 input and 1 output column");
  weight_ = detail::parameter_of(settings.layer, "weight", true);
  bias_ = detail::parameter_of(settings.layer, "bias", false);
}

void Linear::initialize(std::uint64_t seed) {
  detail::allocate(weight_, settings_.dtype, {settings_.in, settings_.out});
  detail::allocate(bias_, settings_.dtype, {settings_.out});
  const bool half =
      settings_.activation == Activation::Relu || settings_.activation == Activation::Gelu;
  const double fan = static_cast<double>(half ? settings_.in : settings_.in + settings_.out);
  const RandomKey key{.seed = seed, .purpose = Purpose::Initialize, .layer = settings_.layer};
  detail::fill_uniform(weight_.value, key, std::sqrt(6.0 / fan));
}

Tensor Linear::forward_rows(const PassContext& context, Tensor input, Stash& stash) {
  const Dims dims{input.rows(), settings_.out};
  Tensor output = context.make(settings_.dtype, dims);
  detail::with_precision(settings_.dtype, [&](auto zero) {
    using T = decltype(zero);
    fill_rows<T>(context, output, bias_.value);
    detail::add_forward<T>(context,
                           {input.rows(), settings_.in, settings_.out, precision()},
                           detail::values<T>(input),
                           detail::values<T>(weight_.value),
                           detail::values<T>(output));
  });
  if (!context.training) {
    detail::activate(context, settings_.activation, output, output, nullptr);
    return output;
  }
  stash.keep(context, std::move(input));
  if (settings_.activation == Activation::None) return output;
  Tensor slopes = context.make(detail::slope_dtype(settings_.activation, settings_.dtype), dims);
  detail::activate(context, settings_.activation, output, output, &slopes);
  stash.keep(context, std::move(slopes));
  return output;
}

Tensor Linear::backward_rows(const PassContext& context,
                             Tensor output_gradient,
                             Stash& stash,
                             bool wanted) {
  if (settings_.activation != Activation::None) {
    const Tensor slopes = stash.take(context, kSlopes);
    detail::chain(context, settings_.activation, output_gradient, slopes);
  }
  Tensor input_gradient;
  if (wanted) {
    const std::int64_t rows = output_gradient.rows();
    input_gradient = context.make(settings_.dtype, {rows, settings_.in});
    detail::with_precision(settings_.dtype, [&](auto zero) {
      using T = decltype(zero);
      detail::make_input_gradient<T>(context,
                                     {rows, settings_.in, settings_.out, precision()},
                                     detail::values<T>(output_gradient),
                                     detail::values<T>(weight_.value),
                                     detail::values<T>(input_gradient));
    });
  }
  stash.keep(context, std::move(output_gradient));
  return input_gradient;
}

void Linear::backward_weight(const PassContext& context, Stash& stash) {
  const Tensor input = stash.read(context, kInput);
  const Tensor gradient = stash.read(context, stash.size() - 1);
  detail::with_precision(settings_.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* dz = detail::values<T>(gradient);
    detail::add_weight_gradient<T>(context,
                                   {gradient.rows(), settings_.in, settings_.out, precision()},
                                   detail::values<T>(input),
                                   dz,
                                   detail::values<T>(weight_.gradient));
    detail::add_column_sums(
        context, dz, gradient.rows(), settings_.out, detail::values<T>(bias_.gradient));
  });
  stash.clear(context);
}

std::size_t Linear::bytes_after_forward(std::int64_t rows) const {
  const std::size_t input =
      size_of(kept_dtype(settings_.dtype)) * static_cast<std::size_t>(rows * settings_.in);
  return input +
         slope_bytes(settings_.activation, kept_dtype(settings_.dtype), rows * settings_.out);
}

std::size_t Linear::bytes_after_input(std::int64_t rows) const {
  return size_of(kept_dtype(settings_.dtype)) *
         static_cast<std::size_t>(rows * (settings_.in + settings_.out));
}

double Linear::operations(std::span<const TensorType> inputs) const {
  return 2.0 * static_cast<double>(inputs[0].dims.elements()) * static_cast<double>(settings_.out);
}

std::string Linear::describe() const {
  std::string text = "layers." + std::to_string(settings_.layer) + ": linear " +
                     std::to_string(settings_.in) + "->" + std::to_string(settings_.out);
  if (settings_.activation != Activation::None)
    text += std::string(" with ") + name_of(settings_.activation);
  return text;
}

LayerKind linear_kind() {
  return {"linear",
          {"out", "activation"},
          [](const LayerSettings& settings,
             std::span<const TensorType> inputs,
             const LayerPlace& place) {
            return std::make_unique<Linear>(
                Linear::Settings{.in = inputs[0].columns(),
                                 .out = settings.integer("out"),
                                 .activation = activation(settings.word("activation", "none")),
                                 .dtype = place.dtype,
                                 .layer = place.number});
          }};
}

}  // namespace millrace
