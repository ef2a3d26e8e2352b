// SwiGLU: one half of a row gates the other.
#include <cstdint>
#include <fmt/format.h>
#include <string>
#include <utility>

#include "millrace/stages/layer.hpp"
#include "stages/kernels/blocks.hpp"
#include "stages/kernels/exponential.hpp"
#include "stages/kernels/precision.hpp"
#include "stages/layers/kinds.hpp"

namespace millrace {
namespace {

template <class T>
T gate(T a) {
  return T(1) / (T(1) + exponential(-a));
}

template <class T>
void gate_row(const T* x, std::int64_t columns, T* y) {
  for (std::int64_t j = 0; j < columns; ++j) y[j] = x[j] * gate(x[j]) * x[columns + j];
}

template <class T>
void row_gradient(const T* dy, const T* x, std::int64_t columns, T* dx) {
  for (std::int64_t j = 0; j < columns; ++j) {
    const T a = x[j];
    const T g = gate(a);
    dx[j] = dy[j] * x[columns + j] * g * (T(1) + a * (T(1) - g));
    dx[columns + j] = dy[j] * a * g;
  }
}

/// y = a / (1 + e^-a) b with a and b the first and second half of x; x [rows, 2 columns], y [rows,
/// columns]. Shazeer, "GLU Variants Improve Transformer", arXiv 2002.05202, equation 5, whose two
/// products are a linear layer before this one. F keeps x. With g = 1 / (1 + e^-a):
/// I: da = dy b g (1 + a (1 - g)), db = dy a g. No weights. Cost: one pass over the data each way.
/// Thread-safety: externally synchronised.
class SwiGlu final : public RowLayer {
 public:
  /// Throws InvalidArgument when there are no two halves or the dtype is neither f32 nor f64.
  SwiGlu(const LayerSettings&, std::span<const TensorType> inputs, const LayerPlace& place)
      : RowLayer(place, {inputs[0].columns()}, {inputs[0].columns() / 2}),
        columns_(output_columns()) {
    require(inputs[0].columns() % 2 == 0, "takes rows of two halves, got " + to_string(inputs[0]));
    require_float(dtype(), describe());
    require(columns_ >= 1,
            fmt::format("layers.{}: swiglu needs rows of two halves with at least 1 column each",
                        number()));
  }

  Tensor forward_rows(const PassContext& context, Tensor input, Stash& stash) override {
    Tensor output = context.make(dtype(), {input.rows(), columns_});
    with_precision(dtype(), [&]<class T>(T) {
      for_rows(context, input.rows(), columns_, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; ++i)
          gate_row(values<T>(std::as_const(input)) + i * 2 * columns_,
                   columns_,
                   values<T>(output) + i * columns_);
      });
    });
    if (context.training) stash.keep(context, std::move(input));
    return output;
  }
  Tensor backward_rows(const PassContext& context,
                       Tensor output_gradient,
                       Stash& stash,
                       bool wanted) override {
    Tensor input_gradient;
    if (wanted) {
      const Tensor input = stash.read(context, 0);
      input_gradient = context.make(dtype(), input.dims());
      with_precision(dtype(), [&]<class T>(T) {
        for_rows(context, input.rows(), columns_, [&](std::int64_t first, std::int64_t last) {
          for (std::int64_t i = first; i < last; ++i)
            row_gradient(values<T>(std::as_const(output_gradient)) + i * columns_,
                         values<T>(input) + i * 2 * columns_,
                         columns_,
                         values<T>(input_gradient) + i * 2 * columns_);
        });
      });
    }
    stash.clear(context);
    return input_gradient;
  }

  [[nodiscard]] std::size_t bytes_after_forward(std::int64_t rows) const override {
    return kept_bytes(2 * rows * columns_);
  }
  [[nodiscard]] std::string describe() const override {
    return fmt::format("layers.{}: swiglu of {}", number(), columns_);
  }

 private:
  std::int64_t columns_;  // of y
};

}  // namespace

LayerKind swiglu_kind() {
  return kind_of<SwiGlu>("swiglu", {});
}

}  // namespace millrace
