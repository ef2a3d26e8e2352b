// The sum of several tensors: where branches of a model meet.
#include <cstdint>
#include <fmt/format.h>
#include <string>
#include <utility>
#include <vector>

#include "millrace/stages/layer.hpp"
#include "stages/kernels/blocks.hpp"
#include "stages/kernels/precision.hpp"
#include "stages/layers/check.hpp"
#include "stages/layers/kinds.hpp"

namespace millrace {
namespace {

template <class T>
void add(const PassContext& context, const T* a, const T* b, std::int64_t elements, T* sum) {
  for_numbers(context, elements, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) sum[i] = a[i] + b[i];
  });
}

/// y = (x_1 + x_2) + ... + x_n, element by element in this order, of n >= 2 tensors of one type.
/// F keeps nothing; I: dx_i = dy for every i. No weights.
/// Thread-safety: externally synchronised.
class Add final : public Layer {
 public:
  /// Throws InvalidArgument with fewer than 2 inputs and for a dtype other than f32 and f64.
  Add(const LayerSettings&, std::span<const TensorType> inputs, const LayerPlace& place)
      : Layer(place), inputs_(inputs.size()) {
    require_float(dtype(), describe());
    require(inputs_ >= 2,
            describe() + ": a sum takes at least 2 tensors, got " + std::to_string(inputs_));
  }

  [[nodiscard]] std::vector<TensorType> infer(std::span<const TensorType> inputs) const override {
    bool fits = inputs.size() == inputs_ && inputs[0].dtype == dtype();
    for (const TensorType& input : inputs)
      fits = fits && input.dtype == inputs[0].dtype && input.dims == inputs[0].dims;
    if (!fits)
      refuse_inputs(
          *this, std::to_string(inputs_) + " tensors of one shape in " + name_of(dtype()), inputs);
    return {{inputs[0].dtype, inputs[0].dims}};
  }
  TensorList forward(const PassContext& context, TensorList inputs, Stash&) override {
    require(inputs.size() == inputs_,
            [&] { return describe() + " got " + std::to_string(inputs.size()) + " tensors"; });
    for (std::size_t i = 0; i < inputs.size(); ++i)
      check_tensor(
          *this,
          "input",
          inputs[i],
          inputs[i] && inputs[i].dtype() == dtype() && inputs[i].dims() == inputs[0].dims(),
          [&] { return name_of(dtype()) + (" " + to_string(inputs[0].dims())); });
    Tensor sum = context.make(dtype(), inputs[0].dims());
    with_precision(dtype(), [&]<class T>(T) {
      T* to = values<T>(sum);
      const T* so_far = values<T>(std::as_const(inputs[0]));
      for (std::size_t i = 1; i < inputs.size(); ++i, so_far = to)
        add<T>(context, so_far, values<T>(std::as_const(inputs[i])), sum.elements(), to);
    });
    return TensorList(std::move(sum));
  }
  TensorList backward_input(const PassContext& context,
                            TensorList output_gradients,
                            Stash&,
                            bool wanted) override {
    Tensor gradient = only(*this, "output gradient", std::move(output_gradients));
    TensorList gradients;
    if (!wanted) return gradients;
    for (std::size_t i = 1; i < inputs_; ++i) gradients.push_back(copy_of(context, gradient));
    gradients.push_back(std::move(gradient));
    return gradients;
  }

  [[nodiscard]] LayerBytes bytes(std::span<const TensorType>) const override { return {}; }
  [[nodiscard]] std::string describe() const override {
    return fmt::format("layers.{}: sum of {}", number(), inputs_);
  }

 private:
  std::size_t inputs_;
};

}  // namespace

LayerKind add_kind() {
  return kind_of<Add>("add", {});
}

}  // namespace millrace
