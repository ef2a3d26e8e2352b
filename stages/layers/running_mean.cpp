// The mean of all positions so far: the smallest layer that is causal along the sequence.
#include <algorithm>
#include <cstdint>
#include <cstring>
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
  struct Settings {
    DType dtype = DType::F32;
    std::uint32_t layer = 0;  ///< global number, for messages
  };

  /// Throws InvalidArgument for a dtype other than f32 and f64.
  explicit RunningMean(const Settings& settings) : settings_(settings) {
    require_float(settings.dtype, describe());
  }

  [[nodiscard]] std::vector<TensorType> infer(std::span<const TensorType> inputs) const override {
    if (inputs.size() != 1 || inputs[0].dtype != settings_.dtype || inputs[0].dims.size() != 3)
      refuse_inputs(
          *this, name_of(settings_.dtype) + std::string(" [samples, positions, columns]"), inputs);
    return {{inputs[0].dtype, inputs[0].dims}};
  }
  TensorList forward(const PassContext& context, TensorList inputs, Stash& stash) override {
    const Tensor input = only(*this, "input", std::move(inputs));
    check("input", input);
    const Dims& dims = input.dims();
    const bool first = context.slice.value == 0;
    const Tensor* before =
        first ? nullptr : &stash.of_slice(Slice{context.slice.value - 1}).shared(0);
    Tensor carry = carry_from(context, before, settings_.dtype, dims);
    Tensor output = context.make(settings_.dtype, dims);
    with_precision(settings_.dtype, [&]<class T>(T) {
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
    check("output gradient", gradient);
    const Dims& dims = gradient.dims();
    const bool last = context.slice.value + 1 == context.slices;
    Tensor carry = carry_from(context, last ? nullptr : &stash.shared(0), settings_.dtype, dims);
    with_precision(settings_.dtype, [&]<class T>(T) {
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
    const std::size_t carry =
        size_of(settings_.dtype) * static_cast<std::size_t>(dims[0] * dims[2]);
    return {.after_forward = carry, .shared = carry};
  }
  [[nodiscard]] std::string describe() const override {
    return "layers." + std::to_string(settings_.layer) + ": running mean";
  }

 private:
  void check(const char* what, const Tensor& tensor) const {
    const bool fits = tensor && tensor.dtype() == settings_.dtype && tensor.dims().size() == 3;
    check_tensor(*this, what, tensor, fits, [&] {
      return name_of(settings_.dtype) + std::string(" [samples, positions, columns]");
    });
  }

  Settings settings_;
};

}  // namespace

LayerKind running_mean_kind() {
  return {"running_mean",
          {},
          [](const LayerSettings&, std::span<const TensorType>, const LayerPlace& place) {
            return std::make_unique<RunningMean>(
                RunningMean::Settings{.dtype = place.dtype, .layer = place.number});
          }};
}

}  // namespace millrace
