// Rows made of all extents but those of a row, and given their extents back.
#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>

#include "millrace/stages/layer.hpp"
#include "stages/layers/check.hpp"

namespace millrace {
namespace {

/// The dims with other extents in the place of the last `from.size()`.
Dims exchanged(const Dims& dims, const Dims& from, const Dims& to) {
  std::array<std::int64_t, 2 * Dims::kMax> extents{};
  const std::size_t leading = dims.size() - from.size();
  std::copy_n(dims.begin(), leading, extents.begin());
  std::ranges::copy(to, extents.begin() + static_cast<std::ptrdiff_t>(leading));
  return Dims(std::span<const std::int64_t>(extents.data(), leading + to.size()));
}

std::int64_t rows_in(const Dims& dims, const Dims& extents) {
  std::int64_t rows = 1;
  for (std::size_t i = 0; i + extents.size() < dims.size(); ++i) rows *= dims[i];
  return rows;
}

}  // namespace

std::vector<TensorType> RowLayer::infer(std::span<const TensorType> inputs) const {
  const Dims extents = input_extents();
  if (inputs.size() != 1 || inputs[0].dtype != dtype() || inputs[0].dims.size() <= extents.size() ||
      !detail::ends_in(inputs[0].dims, extents))
    detail::refuse_inputs(
        *this, std::string(name_of(dtype())) + " rows of " + to_string(extents), inputs);
  TensorType output = inputs[0];
  output.dims = exchanged(output.dims, extents, output_extents());
  output.has_gradient = true;
  return {output};
}

TensorList RowLayer::forward(const PassContext& context, TensorList inputs, Stash& stash) {
  Tensor input = detail::only(*this, "input", std::move(inputs));
  const Dims extents = input_extents();
  detail::check_rows(*this, "input", input, extents);
  const Dims dims = exchanged(input.dims(), extents, output_extents());
  input.reshape({rows_in(input.dims(), extents), input_columns()});
  Tensor output = forward_rows(context, std::move(input), stash);
  output.reshape(dims);
  return TensorList(std::move(output));
}

TensorList RowLayer::backward_input(const PassContext& context,
                                    TensorList output_gradients,
                                    Stash& stash,
                                    bool wanted) {
  Tensor gradient = detail::only(*this, "output gradient", std::move(output_gradients));
  const Dims extents = output_extents();
  detail::check_rows(*this, "output gradient", gradient, extents);
  const Dims dims = exchanged(gradient.dims(), extents, input_extents());
  gradient.reshape({rows_in(gradient.dims(), extents), output_columns()});
  Tensor input_gradient = backward_rows(context, std::move(gradient), stash, wanted);
  if (!wanted) return {};
  input_gradient.reshape(dims);
  return TensorList(std::move(input_gradient));
}

LayerBytes RowLayer::bytes(std::span<const TensorType> inputs) const {
  const std::int64_t rows = rows_in(inputs[0].dims, input_extents());
  return {.after_forward = bytes_after_forward(rows), .after_input = bytes_after_input(rows)};
}

}  // namespace millrace
