// A linear map with its activation, the layer that multilayer perceptrons are made of.
#include <algorithm>
#include <cmath>
#include <cstdint>
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
  struct Settings {
    std::int64_t in = 0;
    std::int64_t out = 0;
    Activation activation = Activation::None;
    DType dtype = DType::F32;
    std::uint32_t layer = 0;  ///< global number: names the parameters and keys their first values
  };

  /// Parameters "layers.N.weight" and "layers.N.bias", without memory until `initialize`.
  /// Throws InvalidArgument when in or out < 1 or the dtype is neither f32 nor f64.
  explicit Linear(const Settings& settings) : settings_(settings) {
    require_float(settings.dtype, describe());
    require(settings.in >= 1 && settings.out >= 1,
            describe() + ": a linear layer needs at least 1 input and 1 output column");
    weight_ = parameter_of(settings.layer, "weight", true);
    bias_ = parameter_of(settings.layer, "bias", false);
  }

  Tensor forward_rows(const PassContext& context, Tensor input, Stash& stash) override {
    const Dims dims{input.rows(), settings_.out};
    Tensor output = context.make(settings_.dtype, dims);
    with_precision(settings_.dtype, [&]<class T>(T) {
      fill_rows<T>(context, output, bias_.value);
      add_forward<T>(context,
                     {input.rows(), settings_.in, settings_.out, precision()},
                     values<T>(input),
                     values<T>(weight_.value),
                     values<T>(output));
    });
    if (!context.training) {
      activate(context, settings_.activation, output, output, nullptr);
      return output;
    }
    stash.keep(context, std::move(input));
    if (settings_.activation == Activation::None) return output;
    Tensor slopes = context.make(slope_dtype(settings_.activation, settings_.dtype), dims);
    activate(context, settings_.activation, output, output, &slopes);
    stash.keep(context, std::move(slopes));
    return output;
  }
  Tensor backward_rows(const PassContext& context,
                       Tensor output_gradient,
                       Stash& stash,
                       bool wanted) override {
    if (settings_.activation != Activation::None) {
      const Tensor slopes = stash.take(context, kSlopes);
      chain(context, settings_.activation, output_gradient, slopes);
    }
    Tensor input_gradient;
    if (wanted) {
      const std::int64_t rows = output_gradient.rows();
      input_gradient = context.make(settings_.dtype, {rows, settings_.in});
      with_precision(settings_.dtype, [&]<class T>(T) {
        make_input_gradient<T>(context,
                               {rows, settings_.in, settings_.out, precision()},
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
    with_precision(settings_.dtype, [&]<class T>(T) {
      const T* dz = values<T>(gradient);
      add_weight_gradient<T>(context,
                             {gradient.rows(), settings_.in, settings_.out, precision()},
                             values<T>(input),
                             dz,
                             values<T>(weight_.gradient));
      add_column_sums(context, dz, gradient.rows(), settings_.out, values<T>(bias_.gradient));
    });
    stash.clear(context);
  }

  [[nodiscard]] std::vector<Parameter*> parameters() override { return {&weight_, &bias_}; }
  /// Weights uniform in [-a, a]: a = sqrt(6 / in) before Relu and Gelu (He et al.,
  /// arXiv 1502.01852, section 2.2), a = sqrt(6 / (in + out)) otherwise (Glorot and Bengio, AISTATS
  /// 2010, equation 16). Bias zero.
  void initialize(std::uint64_t seed) override {
    allocate(weight_, settings_.dtype, {settings_.in, settings_.out});
    allocate(bias_, settings_.dtype, {settings_.out});
    const bool half =
        settings_.activation == Activation::Relu || settings_.activation == Activation::Gelu;
    const double fan = static_cast<double>(half ? settings_.in : settings_.in + settings_.out);
    const RandomKey key{.seed = seed, .purpose = Purpose::Initialize, .layer = settings_.layer};
    fill_uniform(weight_.value, key, std::sqrt(6.0 / fan));
  }

  [[nodiscard]] DType dtype() const override { return settings_.dtype; }
  [[nodiscard]] std::int64_t input_columns() const override { return settings_.in; }
  [[nodiscard]] std::int64_t output_columns() const override { return settings_.out; }
  [[nodiscard]] std::size_t bytes_after_forward(std::int64_t rows) const override {
    const std::size_t input =
        size_of(kept_dtype(settings_.dtype)) * static_cast<std::size_t>(rows * settings_.in);
    return input +
           slope_bytes(settings_.activation, kept_dtype(settings_.dtype), rows * settings_.out);
  }
  [[nodiscard]] std::size_t bytes_after_input(std::int64_t rows) const override {
    return size_of(kept_dtype(settings_.dtype)) *
           static_cast<std::size_t>(rows * (settings_.in + settings_.out));
  }
  [[nodiscard]] double operations(std::span<const TensorType> inputs) const override {
    return 2.0 * static_cast<double>(inputs[0].dims.elements()) *
           static_cast<double>(settings_.out);
  }
  [[nodiscard]] std::string describe() const override {
    std::string text = "layers." + std::to_string(settings_.layer) + ": linear " +
                       std::to_string(settings_.in) + "->" + std::to_string(settings_.out);
    if (settings_.activation != Activation::None)
      text += std::string(" with ") + name_of(settings_.activation);
    return text;
  }

 private:
  Settings settings_;
  Parameter weight_;
  Parameter bias_;
};

}  // namespace

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
