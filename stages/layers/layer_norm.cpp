// Layer and RMS normalisation over the columns of each row.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fmt/format.h>
#include <string>
#include <utility>

#include "millrace/stages/layer.hpp"
#include "stages/kernels/blocks.hpp"
#include "stages/kernels/precision.hpp"
#include "stages/kernels/reductions.hpp"
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
T normalise_row(const T* x, std::int64_t columns, bool centred, double epsilon, T* h) {
  const T count = static_cast<T>(columns);
  const T mean = centred ? row_sum<T>(columns, [&](std::int64_t j) { return x[j]; }) / count : T(0);
  for (std::int64_t j = 0; j < columns; ++j) h[j] = x[j] - mean;
  const T variance = row_sum<T>(columns, [&](std::int64_t j) { return h[j] * h[j]; }) / count;
  const T scale = T(1) / std::sqrt(variance + static_cast<T>(epsilon));
  for (std::int64_t j = 0; j < columns; ++j) h[j] *= scale;
  return scale;
}

/// dx of one row from dy, its normalised values and the weight.
template <class T>
void row_gradient(
    const T* dy, const T* h, const T* weight, T scale, std::int64_t columns, bool centred, T* dx) {
  const T count = static_cast<T>(columns);
  for (std::int64_t j = 0; j < columns; ++j) dx[j] = dy[j] * weight[j];
  const T mean =
      centred ? row_sum<T>(columns, [&](std::int64_t j) { return dx[j]; }) / count : T(0);
  const T along = row_sum<T>(columns, [&](std::int64_t j) { return dx[j] * h[j]; }) / count;
  for (std::int64_t j = 0; j < columns; ++j) dx[j] = (dx[j] - mean - h[j] * along) * scale;
}

/// y = h g + b with h = (x - mean(x)) / sqrt(var(x) + epsilon) per row; x, y [rows, columns],
/// weight g and bias b [columns] (initialised to 1 and 0, not decayed). Ba, Kiros and Hinton,
/// "Layer Normalization", arXiv 1607.06450, equation 4; var divides by the number of columns.
///
/// F keeps h and 1/sqrt(var + epsilon) [rows]. With dh = dy g:
/// I: dx = (dh - mean(dh) - h mean(dh h)) / sqrt(var + epsilon), keeps h and dy instead;
/// W: dg += column sums of dy h, db += column sums of dy, in row order.
///
/// Not centred, it is RMS norm: the means of x and dh are 0, and no bias exists, so that y =
/// x g / sqrt(mean(x^2) + epsilon). Zhang and Sennrich, "Root Mean Square Layer Normalization",
/// arXiv 1910.07467, equation 4.
/// Row sums run in a fixed order for every vector width.
/// Thread-safety: externally synchronised.
class LayerNorm final : public RowLayer {
 public:
  /// `centred` false: RMS norm. Throws InvalidArgument when there are no columns, epsilon <= 0 or
  /// the dtype is neither f32 nor f64.
  LayerNorm(const LayerSettings& settings,
            std::span<const TensorType> inputs,
            const LayerPlace& place,
            bool centred)
      : RowLayer(place, {inputs[0].columns()}, {inputs[0].columns()}),
        epsilon_(settings.number("epsilon", 1e-5)),
        centred_(centred),
        weight_(parameter_of(number(), "weight", false)),
        bias_(parameter_of(number(), "bias", false)) {
    require_float(dtype(), describe());
    require(input_columns() >= 1, describe() + ": a norm needs at least 1 column");
    require(epsilon_ > 0, describe() + ": epsilon must be above 0");
  }

  Tensor forward_rows(const PassContext& context, Tensor input, Stash& stash) override {
    const std::int64_t columns = input_columns();
    Tensor output = context.make(dtype(), input.dims());
    Tensor normalised = context.make(dtype(), {input.rows(), columns});
    Tensor scales = context.make(dtype(), {input.rows()});
    with_precision(dtype(), [&]<class T>(T) {
      const T* weight = values<T>(weight_.value);
      const T* bias = values<T>(bias_.value);
      const auto norm_row = [&](std::int64_t i) {
        T* h = values<T>(normalised) + i * columns;
        values<T>(scales)[i] = normalise_row<T>(
            values<T>(std::as_const(input)) + i * columns, columns, centred_, epsilon_, h);
        T* y = values<T>(output) + i * columns;
        if (centred_) {
          for (std::int64_t j = 0; j < columns; ++j) y[j] = h[j] * weight[j] + bias[j];
        } else {
          for (std::int64_t j = 0; j < columns; ++j) y[j] = h[j] * weight[j];
        }
      };
      for_rows(context, input.rows(), columns, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; ++i) norm_row(i);
      });
    });
    if (!context.training) return output;
    stash.keep(context, std::move(normalised));
    stash.keep(context, std::move(scales));
    return output;
  }
  Tensor backward_rows(const PassContext& context,
                       Tensor output_gradient,
                       Stash& stash,
                       bool wanted) override {
    const Tensor scales = stash.take(context, kRowScales);
    Tensor input_gradient;
    if (wanted) {
      const std::int64_t columns = input_columns();
      const Tensor normalised = stash.read(context, kNormalisedRows);
      input_gradient = context.make(dtype(), output_gradient.dims());
      with_precision(dtype(), [&]<class T>(T) {
        const std::int64_t rows = output_gradient.rows();
        for_rows(context, rows, columns, [&](std::int64_t first, std::int64_t last) {
          for (std::int64_t i = first; i < last; ++i)
            row_gradient<T>(values<T>(std::as_const(output_gradient)) + i * columns,
                            values<T>(normalised) + i * columns,
                            values<T>(std::as_const(weight_.value)),
                            values<T>(scales)[i],
                            columns,
                            centred_,
                            values<T>(input_gradient) + i * columns);
        });
      });
    }
    stash.keep(context, std::move(output_gradient));
    return input_gradient;
  }
  void backward_weight(const PassContext& context, Stash& stash) override {
    const Tensor normalised = stash.read(context, kNormalisedRows);
    const Tensor gradient = stash.read(context, stash.size() - 1);
    const std::int64_t columns = input_columns();
    with_precision(dtype(), [&]<class T>(T) {
      const T* dy = values<T>(gradient);
      T* dg = values<T>(weight_.gradient);
      const std::int64_t rows = gradient.rows();
      for_columns(context, rows, columns, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = 0; i < rows; ++i) {
          const T* h = values<T>(normalised) + i * columns;
          for (std::int64_t j = first; j < last; ++j) dg[j] += dy[i * columns + j] * h[j];
        }
      });
      if (centred_) add_column_sums(context, dy, rows, columns, values<T>(bias_.gradient));
    });
    stash.clear(context);
  }

  [[nodiscard]] std::vector<Parameter*> parameters() override {
    if (!centred_) return {&weight_};
    return {&weight_, &bias_};
  }
  void initialize(std::uint64_t) override {
    for (Parameter* parameter : parameters()) allocate(*parameter, dtype(), {input_columns()});
    with_precision(dtype(), [&]<class T>(T) { std::ranges::fill(weight_.value.as<T>(), T(1)); });
  }
  [[nodiscard]] std::size_t bytes_after_forward(std::int64_t rows) const override {
    return kept_bytes(rows * (input_columns() + 1));
  }
  [[nodiscard]] std::size_t bytes_after_input(std::int64_t rows) const override {
    return kept_bytes(2 * rows * input_columns());
  }
  [[nodiscard]] std::string describe() const override {
    const char* name = centred_ ? "layer" : "RMS";
    return fmt::format("layers.{}: {} norm of {}", number(), name, input_columns());
  }

 private:
  double epsilon_;
  bool centred_;
  Parameter weight_;
  Parameter bias_;
};

}  // namespace

LayerKind layer_norm_kind() {
  return kind_of<LayerNorm>("layer_norm", {"epsilon"}, true);
}

LayerKind rms_norm_kind() {
  return kind_of<LayerNorm>("rms_norm", {"epsilon"}, false);
}

}  // namespace millrace
