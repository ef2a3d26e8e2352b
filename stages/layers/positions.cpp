// Learned positions: a row of a table added to every position of a sequence.
#include <cmath>
#include <cstdint>
#include <fmt/format.h>
#include <string>
#include <utility>
#include <vector>

#include "millrace/stages/layer.hpp"
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

/// y[n, t] = x[n, t] + W[t]; x and y [samples, positions, columns], W [context, columns], t counted
/// from the beginning of the sequence, in slices too. Gehring et al., arXiv 1705.03122,
/// section 3.1. F keeps nothing. I: dx = dy, keeps dy; W: dW[t] += sum of dy[n, t] over the samples
/// in order. Thread-safety: externally synchronised.
class Positions final : public Layer {
 public:
  /// Throws InvalidArgument when context or columns < 1 or the dtype is neither f32 nor f64.
  Positions(const LayerSettings& settings,
            std::span<const TensorType> inputs,
            const LayerPlace& place)
      : Layer(place),
        context_(settings.integer("context")),
        columns_(inputs[0].columns()),
        weight_(parameter_of(number(), "weight", true)) {
    const std::string who = "layers." + std::to_string(number()) + ": positions";
    require_float(dtype(), who);
    require(context_ >= 1 && columns_ >= 1, who + " need a context and columns of at least 1");
  }

  [[nodiscard]] std::vector<TensorType> infer(std::span<const TensorType> inputs) const override {
    return {{dtype(), infer_sequences(*this, inputs, columns_)}};
  }
  /// Throws InvalidArgument for a sequence longer than the context.
  TensorList forward(const PassContext& context, TensorList inputs, Stash&) override {
    const Tensor input = only(*this, "input", std::move(inputs));
    check_sequences(*this, "input", input, columns_);
    const Dims& dims = input.dims();
    if (context.first_position + dims[1] > context_)
      throw InvalidArgument(describe() + ": a sequence of " +
                            std::to_string(context.first_position + dims[1]) + " positions");
    Tensor output = context.make(dtype(), dims);
    const std::int64_t count = dims[1] * dims[2];
    with_precision(dtype(), [&]<class T>(T) {
      const T* table = values<T>(std::as_const(weight_.value)) + context.first_position * dims[2];
      for (std::int64_t n = 0; n < dims[0]; ++n)
        add_row(values<T>(input) + n * count, table, count, values<T>(output) + n * count);
    });
    return TensorList(std::move(output));
  }
  TensorList backward_input(const PassContext& context,
                            TensorList output_gradients,
                            Stash& stash,
                            bool wanted) override {
    Tensor gradient = only(*this, "output gradient", std::move(output_gradients));
    check_sequences(*this, "output gradient", gradient, columns_);
    TensorList gradients;
    if (wanted) gradients.push_back(copy_of(context, gradient));
    stash.keep(context, std::move(gradient));
    return gradients;
  }
  void backward_weight(const PassContext& context, Stash& stash) override {
    const Tensor gradient = stash.read(context, 0);
    const Dims& dims = gradient.dims();
    const std::int64_t count = dims[1] * dims[2];
    with_precision(dtype(), [&]<class T>(T) {
      T* table = values<T>(weight_.gradient) + context.first_position * dims[2];
      for (std::int64_t n = 0; n < dims[0]; ++n)
        add_row(table, values<T>(gradient) + n * count, count, table);
    });
    stash.clear(context);
  }

  [[nodiscard]] std::vector<Parameter*> parameters() override { return {&weight_}; }
  /// Uniform in [-a, a] with a = 0.02 sqrt(3): a standard deviation of 0.02.
  void initialize(std::uint64_t seed) override {
    allocate(weight_, dtype(), {context_, columns_});
    const RandomKey key{.seed = seed, .purpose = Purpose::Initialize, .layer = number()};
    fill_uniform(weight_.value, key, 0.02 * std::sqrt(3.0));
  }
  [[nodiscard]] LayerBytes bytes(std::span<const TensorType> inputs) const override {
    return {.after_input = kept_bytes(inputs[0].dims.elements())};
  }
  [[nodiscard]] std::string describe() const override {
    return fmt::format("layers.{}: positions up to {} of {}", number(), context_, columns_);
  }

 private:
  std::int64_t context_;  // longest sequence
  std::int64_t columns_;
  Parameter weight_;
};

}  // namespace

LayerKind positions_kind() {
  return kind_of<Positions>("positions", {"context"});
}

}  // namespace millrace
