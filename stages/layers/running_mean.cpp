// The mean of all positions so far: the smallest layer that is causal along the sequence.
#include <cstdint>
#include <cstring>
#include <fmt/format.h>
#include <string>
#include <utility>
#include <vector>

#include "millrace/stages/layer.hpp"
#include "stages/kernels/precision.hpp"
#include "stages/layers/check.hpp"
#include "stages/layers/kinds.hpp"

namespace millrace {
namespace {

/// A carry [samples, columns]: what another slice has left in `from`, or zeros.
Tensor carry_from(const PassContext& context, const Tensor* from, DType dtype, const Dims& dims) {
  Tensor carry = context.make(dtype, {dims[0], dims[2]});
  if (from == nullptr)
    carry.fill_zero();
  else if (carry.bytes() != 0)
    std::memcpy(carry.data(), from->data(), carry.bytes());
  return carry;
}

/// step(n, i, carry of sample n) for every sample n and i = 0, 1, ... below the number of
/// positions.
template <class T, class Step>
void walk(const Dims& dims, T* carry, const Step& step) {
  for (std::int64_t n = 0; n < dims[0]; ++n)
    for (std::int64_t t = 0; t < dims[1]; ++t) step(n, t, carry + n * dims[2]);
}

/// y[n, t, :] = (x[n, 0, :] + ... + x[n, t, :]) / (t + 1); x, y [samples, positions, columns], t
/// counted over all slices of the sequence.
///
/// F shares the sum up to the slice's end, from which the next slice continues; I adds dy[t] / (t +
/// 1) from the last position to the first, dx[n, t, :] = sum over u >= t of dy[n, u, :] / (u + 1),
/// and leaves the sum to the slice before, in the place of what that one shared. So bits do not
/// depend on the slices. No weights. Cost: one pass over the data each way. Thread-safety:
/// externally synchronised.
class RunningMean final : public Layer {
 public:
  /// Throws InvalidArgument for a dtype other than f32 and f64.
  RunningMean(const LayerSettings&, std::span<const TensorType> inputs, const LayerPlace& place)
      : Layer(place), columns_(inputs[0].columns()) {
    require_float(dtype(), describe());
  }

  [[nodiscard]] std::vector<TensorType> infer(std::span<const TensorType> inputs) const override {
    return {{dtype(), infer_sequences(*this, inputs, columns_)}};
  }
  TensorList forward(const PassContext& context, TensorList inputs, Stash& stash) override {
    const Tensor input = only(*this, "input", std::move(inputs));
    check_sequences(*this, "input", input, columns_);
    const Dims& dims = input.dims();
    const bool first = context.slice.value == 0;
    const Tensor* before =
        first ? nullptr : &stash.of_slice(Slice{context.slice.value - 1}).shared(0);
    Tensor carry = carry_from(context, before, dtype(), dims);
    Tensor output = context.make(dtype(), dims);
    with_precision(dtype(), [&]<class T>(T) {
      const T* x = values<T>(input);
      T* y = values<T>(output);
      walk(dims, values<T>(carry), [&](std::int64_t n, std::int64_t t, T* sum) {
        const std::int64_t at = (n * dims[1] + t) * dims[2];
        const T count = static_cast<T>(context.first_position + t + 1);
        for (std::int64_t j = 0; j < dims[2]; ++j) {
          sum[j] += x[at + j];
          y[at + j] = sum[j] / count;
        }
      });
    });
    if (context.training || context.slices > 1) stash.share(context, 0, std::move(carry));
    return TensorList(std::move(output));
  }
  TensorList backward_input(const PassContext& context,
                            TensorList output_gradients,
                            Stash& stash,
                            bool wanted) override {
    Tensor gradient = only(*this, "output gradient", std::move(output_gradients));
    check_sequences(*this, "output gradient", gradient, columns_);
    const Dims& dims = gradient.dims();
    const bool last = context.slice.value + 1 == context.slices;
    Tensor carry = carry_from(context, last ? nullptr : &stash.shared(0), dtype(), dims);
    with_precision(dtype(), [&]<class T>(T) {
      T* d = values<T>(gradient);
      walk(dims, values<T>(carry), [&](std::int64_t n, std::int64_t backwards, T* sum) {
        const std::int64_t t = dims[1] - 1 - backwards;
        const std::int64_t at = (n * dims[1] + t) * dims[2];
        const T count = static_cast<T>(context.first_position + t + 1);
        for (std::int64_t j = 0; j < dims[2]; ++j) {
          sum[j] += d[at + j] / count;
          d[at + j] = sum[j];
        }
      });
    });
    stash.clear(context);
    if (context.slice.value > 0)
      stash.of_slice(Slice{context.slice.value - 1}).share(context, 0, std::move(carry));
    return wanted ? TensorList(std::move(gradient)) : TensorList();
  }

  [[nodiscard]] LayerBytes bytes(std::span<const TensorType> inputs) const override {
    const Dims& dims = inputs[0].dims;
    const std::size_t carry = size_of(dtype()) * static_cast<std::size_t>(dims[0] * dims[2]);
    return {.after_forward = carry, .shared = carry};
  }
  [[nodiscard]] std::string describe() const override {
    return fmt::format("layers.{}: running mean", number());
  }

 private:
  std::int64_t columns_;
};

}  // namespace

LayerKind running_mean_kind() {
  return kind_of<RunningMean>("running_mean", {});
}

}  // namespace millrace
