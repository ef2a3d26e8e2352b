// Rows made of all extents but the last, and given their extents back.
#include "millrace/stages/row_layer.hpp"

#include <string>
#include <utility>

#include "stages/layers/check.hpp"

namespace millrace {
namespace {

/// The extents with another last one.
Dims with_columns(Dims dims, std::int64_t columns) {
  *(dims.end() - 1) = columns;
  return dims;
}

void flatten(Tensor& tensor, std::int64_t columns) {
  tensor.reshape({tensor.elements() / columns, columns});
}

}  // namespace

std::vector<TensorType> RowLayer::infer(std::span<const TensorType> inputs) const {
  if (inputs.size() != 1 || inputs[0].dtype != dtype() || inputs[0].dims.size() < 2 ||
      inputs[0].columns() != input_columns())
    detail::refuse_inputs(
        *this,
        std::string(name_of(dtype())) + " rows of " + std::to_string(input_columns()),
        inputs);
  TensorType output = inputs[0];
  output.dims = with_columns(output.dims, output_columns());
  output.has_gradient = true;
  return {output};
}

TensorList RowLayer::forward(const PassContext& context, TensorList inputs, Stash& stash) {
  Tensor input = detail::only(*this, "input", std::move(inputs));
  detail::check_rows(*this, "input", input, input_columns());
  const Dims dims = with_columns(input.dims(), output_columns());
  flatten(input, input_columns());
  Tensor output = forward_rows(context, std::move(input), stash);
  output.reshape(dims);
  return TensorList(std::move(output));
}

TensorList RowLayer::backward_input(const PassContext& context,
                                    TensorList output_gradients,
                                    Stash& stash,
                                    bool wanted) {
  Tensor gradient = detail::only(*this, "output gradient", std::move(output_gradients));
  detail::check_rows(*this, "output gradient", gradient, output_columns());
  const Dims dims = with_columns(gradient.dims(), input_columns());
  flatten(gradient, output_columns());
  Tensor input_gradient = backward_rows(context, std::move(gradient), stash, wanted);
  if (!wanted) return {};
  input_gradient.reshape(dims);
  return TensorList(std::move(input_gradient));
}

LayerBytes RowLayer::bytes(std::span<const TensorType> inputs) const {
  const std::int64_t rows = inputs[0].dims.elements() / input_columns();
  return {.after_forward = bytes_after_forward(rows), .after_input = bytes_after_input(rows)};
}

}  // namespace millrace
