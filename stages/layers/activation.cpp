// Applying activations, and the layer that does nothing else.
#include <fmt/format.h>
#include <utility>

#include "core/names.hpp"
#include "millrace/stages/layer.hpp"
#include "stages/kernels/blocks.hpp"
#include "stages/kernels/exponential.hpp"
#include "stages/kernels/precision.hpp"
#include "stages/layers/activate.hpp"
#include "stages/layers/kinds.hpp"

namespace millrace {
namespace {

constexpr Names<Activation, 4> kActivations = {"activation",
                                               {{{"none", Activation::None},
                                                 {"relu", Activation::Relu},
                                                 {"gelu", Activation::Gelu},
                                                 {"tanh", Activation::Tanh}}}};

/// ReLU: f(z) = max(z, 0), f'(z) = 1 for z > 0 and 0 elsewhere. The slope is kept as a byte.
struct Relu {
  template <class T>
  using Slope = std::uint8_t;

  template <class T>
  static T value(T z) {
    return z <= T(0) ? T(0) : z;  // a NaN goes through
  }

  template <class T>
  static std::uint8_t slope(T z) {
    return z <= T(0) ? 0 : 1;
  }

  template <class T>
  static T chain(T gradient, std::uint8_t slope) {
    return slope == 0 ? T(0) : gradient;
  }
};

/// tanh: f(z) = tanh(z), f'(z) = 1 - f(z)^2.
struct Tanh {
  template <class T>
  using Slope = T;

  template <class T>
  static T value(T z) {
    return hyperbolic_tangent(z);
  }

  template <class T>
  static T slope(T z) {
    const T y = hyperbolic_tangent(z);
    return T(1) - y * y;
  }

  template <class T>
  static T chain(T gradient, T slope) {
    return gradient * slope;
  }
};

/// GELU in the tanh form: f(z) = z/2 (1 + tanh(u)) = z g with u = a (z + c z^3), a = sqrt(2/pi),
/// c = 0.044715 and g = 1 / (1 + e^(-2u)). f'(z) = g + z g (1 - g) 2 a (1 + 3 c z^2).
struct Gelu {
  template <class T>
  using Slope = T;

  static constexpr double kTwiceA = 1.5957691216057308;
  static constexpr double kC = 0.044715;

  template <class T>
  static T gate(T z) {
    return T(1) / (T(1) + exponential(-T(kTwiceA) * (z + T(kC) * z * z * z)));
  }

  template <class T>
  static T value(T z) {
    return z * gate(z);
  }

  template <class T>
  static T slope(T z) {
    const T g = gate(z);
    return g + z * g * (T(1) - g) * T(kTwiceA) * (T(1) + T(3 * kC) * z * z);
  }

  template <class T>
  static T chain(T gradient, T slope) {
    return gradient * slope;
  }
};

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

std::size_t slope_bytes(Activation activation, DType dtype, std::int64_t elements) {
  if (activation == Activation::None) return 0;
  return size_of(slope_dtype(activation, dtype)) * static_cast<std::size_t>(elements);
}

const char* name_of(Activation activation) {
  return kActivations.of(activation).data();
}

Activation activation(std::string_view name) {
  return kActivations.value(name);
}

namespace {

/// y = f(x) as a layer; keeps the slopes [rows, columns] and nothing else.
/// I: dx = dy f'(x). No weights. Cost: one pass over the data each way.
/// Thread-safety: externally synchronised.
class ActivationLayer final : public RowLayer {
 public:
  /// Throws InvalidArgument when there are no columns or the dtype is neither f32 nor f64.
  ActivationLayer(const LayerSettings& settings,
                  std::span<const TensorType> inputs,
                  const LayerPlace& place)
      : RowLayer(place, {inputs[0].columns()}, {inputs[0].columns()}),
        activation_(activation(settings.word("function", "relu"))) {
    require_float(dtype(), describe());
    require(
        input_columns() >= 1,
        fmt::format(
            "layers.{}: an activation needs at least 1 column, got {}", number(), input_columns()));
  }

  Tensor forward_rows(const PassContext& context, Tensor input, Stash& stash) override {
    if (activation_ == Activation::None) return input;
    Tensor output = context.make(dtype(), input.dims());
    if (!context.training) {
      activate(context, activation_, input, output, nullptr);
      return output;
    }
    Tensor slopes = context.make(slope_dtype(activation_, dtype()), input.dims());
    activate(context, activation_, input, output, &slopes);
    stash.keep(context, std::move(slopes));
    return output;
  }
  Tensor backward_rows(const PassContext& context,
                       Tensor output_gradient,
                       Stash& stash,
                       bool wanted) override {
    if (wanted && activation_ != Activation::None)
      chain(context, activation_, output_gradient, stash.read(context, 0));
    stash.clear(context);
    return wanted ? std::move(output_gradient) : Tensor();
  }

  [[nodiscard]] std::size_t bytes_after_forward(std::int64_t rows) const override {
    return slope_bytes(activation_, kept_dtype(), rows * input_columns());
  }
  [[nodiscard]] std::string describe() const override {
    return fmt::format("layers.{}: {} of {}", number(), name_of(activation_), input_columns());
  }

 private:
  Activation activation_;
};

}  // namespace

LayerKind activation_kind() {
  return kind_of<ActivationLayer>("activation", {"function"});
}

}  // namespace millrace
