// Windows over images, and the passes of a RowLayer: rows in, rows out.
#include "millrace/stages/layer.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>

#include "millrace/core/error.hpp"
#include "stages/layers/check.hpp"

namespace millrace {
ImageShape Window::over(const ImageShape& image, const std::string& who) const {
  require(image.height >= 1 && image.width >= 1 && image.channels >= 1,
          who + ": the extents of an image must be known and at least 1, got " +
              to_string(image.dims()));
  require(kernel_height >= 1 && kernel_width >= 1 && stride >= 1, [&] {
    return who + ": kernel and stride must be at least 1, got a kernel of " +
           to_string(Dims{kernel_height, kernel_width}) + " and stride " + std::to_string(stride);
  });
  const std::int64_t smaller = std::min(kernel_height, kernel_width);
  require(padding >= 0 && padding <= smaller / 2, [&] {
    return who + ": padding must be from 0 to half the kernel, " + std::to_string(smaller / 2) +
           ", got " + std::to_string(padding);
  });
  require(image.height + 2 * padding >= kernel_height && image.width + 2 * padding >= kernel_width,
          [&] {
            return who + ": a kernel of " + to_string(Dims{kernel_height, kernel_width}) +
                   " does not fit into an image of " + to_string(Dims{image.height, image.width}) +
                   " with padding " + std::to_string(padding);
          });
  return {.height = (image.height + 2 * padding - kernel_height) / stride + 1,
          .width = (image.width + 2 * padding - kernel_width) / stride + 1,
          .channels = image.channels};
}

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
  const Dims& extents = input_extents();
  if (inputs.size() != 1 || inputs[0].dtype != dtype() || inputs[0].dims.size() <= extents.size() ||
      !ends_in(inputs[0].dims, extents))
    refuse_inputs(*this, std::string(name_of(dtype())) + " rows of " + to_string(extents), inputs);
  TensorType output = inputs[0];
  output.dims = exchanged(output.dims, extents, output_extents());
  output.has_gradient = true;
  return {output};
}

TensorList RowLayer::forward(const PassContext& context, TensorList inputs, Stash& stash) {
  Tensor input = only(*this, "input", std::move(inputs));
  const Dims& extents = input_extents();
  check_rows(*this, "input", input, extents);
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
  Tensor gradient = only(*this, "output gradient", std::move(output_gradients));
  const Dims& extents = output_extents();
  check_rows(*this, "output gradient", gradient, extents);
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
