// Applying activations, and the layer that does nothing else.
#include "millrace/stages/activation.hpp"

#include <utility>

#include "stages/kernels/blocks.hpp"
#include "stages/kernels/precision.hpp"
#include "stages/layers/activate.hpp"
#include "stages/layers/gelu.hpp"
#include "stages/layers/kinds.hpp"
#include "stages/layers/relu.hpp"
#include "stages/layers/tanh.hpp"

namespace millrace {

namespace detail {
namespace {

/// body(F{}) with the function object of the activation; nothing for None.
template <class Body>
void with_function(Activation activation, Body&& body) {
  switch (activation) {
    case Activation::None:
      return;
    case Activation::Relu:
      return body(Relu{});
    case Activation::Gelu:
      return body(Gelu{});
    case Activation::Tanh:
      return body(Tanh{});
  }
}

template <class F, class T>
void activate_all(const T* from, T* to, typename F::template Slope<T>* slopes, std::int64_t count) {
  if (slopes == nullptr) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = F::value(from[i]);
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const T z = from[i];
    slopes[i] = F::slope(z);
    to[i] = F::value(z);
  }
}

}  // namespace

DType slope_dtype(Activation activation, DType dtype) {
  return activation == Activation::Relu ? DType::U8 : dtype;
}

void activate(const PassContext& context,
              Activation activation,
              const Tensor& from,
              Tensor& to,
              Tensor* slopes) {
  with_function(activation, [&](auto function) {
    with_precision(from.dtype(), [&](auto zero) {
      using F = decltype(function);
      using T = decltype(zero);
      using S = typename F::template Slope<T>;
      S* kept = slopes == nullptr ? nullptr : values<S>(*slopes);
      for_numbers(context, from.elements(), [&](std::int64_t first, std::int64_t last) {
        activate_all<F, T>(values<T>(from) + first,
                           values<T>(to) + first,
                           kept == nullptr ? nullptr : kept + first,
                           last - first);
      });
    });
  });
}

void chain(const PassContext& context,
           Activation activation,
           Tensor& gradient,
           const Tensor& slopes) {
  with_function(activation, [&](auto function) {
    with_precision(gradient.dtype(), [&](auto zero) {
      using F = decltype(function);
      using T = decltype(zero);
      T* g = values<T>(gradient);
      const auto* s = values<typename F::template Slope<T>>(slopes);
      for_numbers(context, gradient.elements(), [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; ++i) g[i] = F::chain(g[i], s[i]);
      });
    });
  });
}

}  // namespace detail

const char* name_of(Activation activation) {
  switch (activation) {
    case Activation::None:
      return "none";
    case Activation::Relu:
      return "relu";
    case Activation::Gelu:
      return "gelu";
    case Activation::Tanh:
      return "tanh";
  }
  return "?";
}

Activation activation(std::string_view name) {
  for (const Activation known :
       {Activation::None, Activation::Relu, Activation::Gelu, Activation::Tanh})
    if (name == name_of(known)) return known;
  throw InvalidArgument("unknown activation '" + std::string(name) +
                        "'; known are none, relu, gelu, tanh");
}

std::size_t slope_bytes(Activation activation, DType dtype, std::int64_t elements) {
  if (activation == Activation::None) return 0;
  return size_of(detail::slope_dtype(activation, dtype)) * static_cast<std::size_t>(elements);
}

ActivationLayer::ActivationLayer(std::string name,
                                 Activation activation,
                                 std::int64_t columns,
                                 DType dtype)
    : name_(std::move(name)), activation_(activation), columns_(columns), dtype_(dtype) {
  detail::require_float(dtype, describe());
  require(columns >= 1,
          name_ + ": an activation needs at least 1 column, got " + std::to_string(columns));
}

Tensor ActivationLayer::forward_rows(const PassContext& context, Tensor input, Stash& stash) {
  if (activation_ == Activation::None) return input;
  Tensor output = context.make(dtype_, input.dims());
  if (!context.training) {
    detail::activate(context, activation_, input, output, nullptr);
    return output;
  }
  Tensor slopes = context.make(detail::slope_dtype(activation_, dtype_), input.dims());
  detail::activate(context, activation_, input, output, &slopes);
  stash.keep(context, std::move(slopes));
  return output;
}

Tensor ActivationLayer::backward_rows(const PassContext& context,
                                      Tensor output_gradient,
                                      Stash& stash,
                                      bool wanted) {
  if (wanted && activation_ != Activation::None)
    detail::chain(context, activation_, output_gradient, stash.read(context, 0));
  stash.clear(context);
  return wanted ? std::move(output_gradient) : Tensor();
}

std::size_t ActivationLayer::bytes_after_forward(std::int64_t rows) const {
  return slope_bytes(activation_, kept_dtype(dtype_), rows * columns_);
}

std::string ActivationLayer::describe() const {
  return name_ + ": " + name_of(activation_) + " of " + std::to_string(columns_);
}

LayerKind activation_kind() {
  return {"activation",
          {"function"},
          [](const LayerSettings& settings,
             std::span<const TensorType> inputs,
             const LayerPlace& place) {
            return std::make_unique<ActivationLayer>("layers." + std::to_string(place.number),
                                                     activation(settings.word("function", "relu")),
                                                     inputs[0].columns(),
                                                     place.dtype);
          }};
}

}  // namespace millrace
