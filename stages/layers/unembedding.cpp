// The head of a model over a vocabulary: a score for every row of a table.
#include <cmath>
#include <cstdint>
#include <fmt/format.h>
#include <string>
#include <utility>

#include "millrace/stages/layer.hpp"
#include "stages/kernels/precision.hpp"
#include "stages/kernels/product.hpp"
#include "stages/layers/check.hpp"
#include "stages/layers/kinds.hpp"
#include "stages/layers/parameters.hpp"

namespace millrace {
namespace {

/// y = x W^T with x [rows, columns], W [words, columns], y [rows, words]: the scalar product of x
/// with every row of the table. W has the shape of an Embedding's table, so that the two can be
/// tied (Press and Wolf, arXiv 1608.05859).
///
/// F keeps x. I: dx = dy W, keeps x and dy; W: dW += dy^T x.
/// Cost: one product of 2 rows words columns operations per pass.
/// Thread-safety: externally synchronised.
class Unembedding final : public RowLayer {
 public:
  /// Parameter "layers.N.weight", without memory until `initialize`. Throws InvalidArgument when
  /// words or columns are below 1 or the dtype is neither f32 nor f64.
  Unembedding(const LayerSettings& settings,
              std::span<const TensorType> inputs,
              const LayerPlace& place)
      : RowLayer(place, {inputs[0].columns()}, {settings.integer("words")}),
        weight_(parameter_of(number(), "weight", true)) {
    require_float(dtype(), describe());
    require(input_columns() >= 1 && output_columns() >= 1,
            describe() + ": a table needs at least 1 row and 1 column");
  }

  Tensor forward_rows(const PassContext& context, Tensor input, Stash& stash) override {
    Tensor output = context.make(dtype(), {input.rows(), output_columns()});
    with_precision(dtype(), [&]<class T>(T) {
      multiply<T>(context,
                  {.rows = input.rows(),
                   .columns = output_columns(),
                   .depth = input_columns(),
                   .b_transposed = true,
                   .accumulate = false,
                   .factors = precision()},
                  values<T>(std::as_const(input)),
                  values<T>(std::as_const(weight_.value)),
                  values<T>(output));
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
      const std::int64_t rows = output_gradient.rows();
      input_gradient = context.make(dtype(), {rows, input_columns()});
      with_precision(dtype(), [&]<class T>(T) {
        multiply<T>(context,
                    {.rows = rows,
                     .columns = input_columns(),
                     .depth = output_columns(),
                     .accumulate = false,
                     .factors = precision()},
                    values<T>(std::as_const(output_gradient)),
                    values<T>(std::as_const(weight_.value)),
                    values<T>(input_gradient));
      });
    }
    stash.keep(context, std::move(output_gradient));
    return input_gradient;
  }
  void backward_weight(const PassContext& context, Stash& stash) override {
    const Tensor input = stash.read(context, 0);
    const Tensor gradient = stash.read(context, 1);
    with_precision(dtype(), [&]<class T>(T) {
      multiply<T>(context,
                  {.rows = output_columns(),
                   .columns = input_columns(),
                   .depth = gradient.rows(),
                   .a_transposed = true,
                   .factors = precision()},
                  values<T>(gradient),
                  values<T>(input),
                  values<T>(weight_.gradient));
    });
    stash.clear(context);
  }

  [[nodiscard]] std::vector<Parameter*> parameters() override { return {&weight_}; }
  /// Uniform in [-a, a] with a = sqrt(3 / columns), as an Embedding's.
  void initialize(std::uint64_t seed) override {
    allocate(weight_, dtype(), {output_columns(), input_columns()});
    const RandomKey key{.seed = seed, .purpose = Purpose::Initialize, .layer = number()};
    fill_uniform(weight_.value, key, std::sqrt(3.0 / static_cast<double>(input_columns())));
  }

  [[nodiscard]] std::size_t bytes_after_forward(std::int64_t rows) const override {
    return kept_bytes(rows * input_columns());
  }
  [[nodiscard]] std::size_t bytes_after_input(std::int64_t rows) const override {
    return kept_bytes(rows * (input_columns() + output_columns()));
  }
  [[nodiscard]] double operations(std::span<const TensorType> inputs) const override {
    return 2.0 * static_cast<double>(inputs[0].dims.elements()) *
           static_cast<double>(output_columns());
  }
  [[nodiscard]] std::string describe() const override {
    return fmt::format(
        "layers.{}: unembedding {}->{}", number(), input_columns(), output_columns());
  }

 private:
  Parameter weight_;
};

}  // namespace

LayerKind unembedding_kind() {
  return kind_of<Unembedding>("unembedding", {"words"});
}

}  // namespace millrace
