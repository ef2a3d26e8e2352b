// A linear map with its activation, the layer that multilayer perceptrons are made of.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fmt/format.h>
#include <string>
#include <utility>

#include "millrace/stages/layer.hpp"
#include "stages/kernels/blocks.hpp"
#include "stages/kernels/precision.hpp"
#include "stages/kernels/product.hpp"
#include "stages/kernels/reductions.hpp"
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
  const T* from = values<T>(row);
  T* to = values<T>(rows);
  for_rows(context, rows.rows(), row.elements(), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i)
      std::copy_n(from, row.elements(), to + i * row.elements());
  });
}

/// y = f(x W + b) with x [rows, in], W [in, out], b [out], y [rows, out].
///
/// F keeps x and the slopes s = f'(x W + b) (see slope_bytes). With dz = dy s:
/// I: dx = dz W^T, keeps x and dz instead; W: dW += x^T dz, db += column sums of dz in row order.
/// Cost: one product of 2 rows in out operations per pass.
/// Bits: depend on the shapes and the instruction set only; the blocking of the products is fixed.
/// Thread-safety: externally synchronised.
class Linear final : public RowLayer {
 public:
  /// Parameters "layers.N.weight" and "layers.N.bias", without memory until `initialize`.
  /// Throws InvalidArgument when in or out < 1 or the dtype is neither f32 nor f64.
  Linear(const LayerSettings& settings, std::span<const TensorType> inputs, const LayerPlace& place)
      : RowLayer(place, {inputs[0].columns()}, {settings.integer("out")}),
        activation_(activation(settings.word("activation", "none"))),
        weight_(parameter_of(number(), "weight", true)),
        bias_(parameter_of(number(), "bias", false)) {
    require_float(dtype(), describe());
    require(input_columns() >= 1 && output_columns() >= 1,
            describe() + ": a linear layer needs at least 1 input and 1 output column");
  }

  Tensor forward_rows(const PassContext& context, Tensor input, Stash& stash) override {
    const Dims dims{input.rows(), output_columns()};
    Tensor output = context.make(dtype(), dims);
    with_precision(dtype(), [&]<class T>(T) {
      fill_rows<T>(context, output, bias_.value);
      add_forward<T>(context,
                     {input.rows(), input_columns(), output_columns(), precision()},
                     values<T>(input),
                     values<T>(weight_.value),
                     values<T>(output));
    });
    if (!context.training) {
      activate(context, activation_, output, output, nullptr);
      return output;
    }
    stash.keep(context, std::move(input));
    if (activation_ == Activation::None) return output;
    Tensor slopes = context.make(slope_dtype(activation_, dtype()), dims);
    activate(context, activation_, output, output, &slopes);
    stash.keep(context, std::move(slopes));
    return output;
  }
  Tensor backward_rows(const PassContext& context,
                       Tensor output_gradient,
                       Stash& stash,
                       bool wanted) override {
    if (activation_ != Activation::None) {
      const Tensor slopes = stash.take(context, kSlopes);
      chain(context, activation_, output_gradient, slopes);
    }
    Tensor input_gradient;
    if (wanted) {
      const std::int64_t rows = output_gradient.rows();
      input_gradient = context.make(dtype(), {rows, input_columns()});
      with_precision(dtype(), [&]<class T>(T) {
        make_input_gradient<T>(context,
                               {rows, input_columns(), output_columns(), precision()},
                               values<T>(output_gradient),
                               values<T>(weight_.value),
                               values<T>(input_gradient));
      });
    }
    stash.keep(context, std::move(output_gradient));
    return input_gradient;
  }
  void backward_weight(const PassContext& context, Stash& stash) override {
    const Tensor input = stash.read(context, kInput);
    const Tensor gradient = stash.read(context, stash.size() - 1);
    with_precision(dtype(), [&]<class T>(T) {
      const T* dz = values<T>(gradient);
      add_weight_gradient<T>(context,
                             {gradient.rows(), input_columns(), output_columns(), precision()},
                             values<T>(input),
                             dz,
                             values<T>(weight_.gradient));
      add_column_sums(context, dz, gradient.rows(), output_columns(), values<T>(bias_.gradient));
    });
    stash.clear(context);
  }

  [[nodiscard]] std::vector<Parameter*> parameters() override { return {&weight_, &bias_}; }
  /// Weights uniform in [-a, a]: a = sqrt(6 / in) before Relu and Gelu (He et al.,
  /// arXiv 1502.01852, section 2.2), a = sqrt(6 / (in + out)) otherwise (Glorot and Bengio, AISTATS
  /// 2010, equation 16). Bias zero.
  void initialize(std::uint64_t seed) override {
    allocate(weight_, dtype(), {input_columns(), output_columns()});
    allocate(bias_, dtype(), {output_columns()});
    const bool half = activation_ == Activation::Relu || activation_ == Activation::Gelu;
    const auto fan = static_cast<double>(input_columns() + (half ? 0 : output_columns()));
    const RandomKey key{.seed = seed, .purpose = Purpose::Initialize, .layer = number()};
    fill_uniform(weight_.value, key, std::sqrt(6.0 / fan));
  }

  [[nodiscard]] std::size_t bytes_after_forward(std::int64_t rows) const override {
    return kept_bytes(rows * input_columns()) +
           slope_bytes(activation_, kept_dtype(), rows * output_columns());
  }
  [[nodiscard]] std::size_t bytes_after_input(std::int64_t rows) const override {
    return kept_bytes(rows * (input_columns() + output_columns()));
  }
  [[nodiscard]] double operations(std::span<const TensorType> inputs) const override {
    return 2.0 * static_cast<double>(inputs[0].dims.elements()) *
           static_cast<double>(output_columns());
  }
  [[nodiscard]] std::string describe() const override {
    const std::string text =
        fmt::format("layers.{}: linear {}->{}", number(), input_columns(), output_columns());
    return activation_ == Activation::None ? text : text + " with " + name_of(activation_);
  }

 private:
  Activation activation_;
  Parameter weight_;
  Parameter bias_;
};

}  // namespace

LayerKind linear_kind() {
  return kind_of<Linear>("linear", {"out", "activation"});
}

}  // namespace millrace
