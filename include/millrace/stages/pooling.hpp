// Max and average pooling over the windows of an image.
#pragma once

#include <cstdint>
#include <string>

#include "millrace/stages/row_layer.hpp"
#include "millrace/stages/window.hpp"

namespace millrace {

enum class Pool : std::uint8_t { Max, Average };

/// y[n, i, j, c] = the largest, or the mean, of x[n, ., ., c] in the window of output pixel (i, j);
/// x [samples, height, width, channels], channels last. Padding never wins a maximum and counts as
/// 0 in a mean. No weights.
///
/// Max: F keeps the place of each maximum, i32 (the first one in row-major order; a number that is
/// no number wins); I: dx is the sum of dy over the windows that a pixel won. Average: F keeps
/// nothing; I: dx is the sum of dy / window pixels. Both add in the order of the output pixels.
/// Thread-safety: externally synchronised.
class Pooling final : public RowLayer {
 public:
  struct Settings {
    Pool pool = Pool::Max;
    ImageShape image;  ///< of the input
    Window window;
    DType dtype = DType::F32;
    std::uint32_t layer = 0;  ///< global number, for messages
  };

  /// Throws InvalidArgument when an extent is below 1, the window does not fit (see Window), an
  /// image has more than 2^31 numbers, or the dtype is neither f32 nor f64.
  explicit Pooling(const Settings& settings);

  Tensor forward_rows(const PassContext& context, Tensor input, Stash& stash) override;
  Tensor backward_rows(const PassContext& context,
                       Tensor output_gradient,
                       Stash& stash,
                       bool wanted) override;

  [[nodiscard]] DType dtype() const override { return settings_.dtype; }
  [[nodiscard]] std::int64_t input_columns() const override { return settings_.image.elements(); }
  [[nodiscard]] std::int64_t output_columns() const override { return output_.elements(); }
  [[nodiscard]] Dims input_extents() const override { return settings_.image.dims(); }
  [[nodiscard]] Dims output_extents() const override { return output_.dims(); }
  [[nodiscard]] std::size_t bytes_after_forward(std::int64_t rows) const override;
  [[nodiscard]] std::size_t bytes_after_input(std::int64_t) const override { return 0; }
  [[nodiscard]] std::string describe() const override;

 private:
  Settings settings_;
  ImageShape output_;
};

}  // namespace millrace
