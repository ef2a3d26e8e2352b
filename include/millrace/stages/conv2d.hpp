// Two-dimensional convolution as a matrix product over the windows of an image.
#pragma once

#include <cstdint>
#include <string>

#include "millrace/stages/row_layer.hpp"
#include "millrace/stages/window.hpp"

namespace millrace {

/// y[n, i, j, :] = b + sum over (u, v, c) of x[n, i stride - padding + u, j stride - padding + v,
/// c] W[u, v, c, :], pixels outside the image being 0; x [samples, height, width, channels],
/// channels last, W [kernel, kernel, channels, out], b [out].
///
/// It is the linear map of rows that im2col lays out, one row of kernel kernel channels numbers for
/// every output pixel (Chellapilla, Puri and Simard, "High Performance Convolutional Neural
/// Networks for Document Processing", 2006, section 2.1); it does so for few samples at a time, so
/// that the rows stay in cache, and again in W, so that F keeps x alone. With dz = dy:
/// I: dx = the rows dz W^T added back to the pixels they came from, keeps dz too; W: dW += rows^T
/// dz, db += sums of dz over pixels in their order.
/// Cost: one product of 2 (samples pixels) (kernel kernel channels) out operations per pass.
/// Bits: depend on the shapes and the instruction set only. Thread-safety: externally synchronised.
class Conv2d final : public RowLayer {
 public:
  struct Settings {
    ImageShape image;  ///< of the input
    std::int64_t out = 0;
    Window window;
    DType dtype = DType::F32;
    std::uint32_t layer = 0;  ///< global number: names the parameters and keys their first values
  };

  /// Throws InvalidArgument when an extent or out is below 1, the window does not fit (see Window),
  /// or the dtype is neither f32 nor f64.
  explicit Conv2d(const Settings& settings);

  Tensor forward_rows(const PassContext& context, Tensor input, Stash& stash) override;
  Tensor backward_rows(const PassContext& context,
                       Tensor output_gradient,
                       Stash& stash,
                       bool wanted) override;
  void backward_weight(const PassContext& context, Stash& stash) override;

  [[nodiscard]] std::vector<Parameter*> parameters() override { return {&weight_, &bias_}; }
  /// Weights uniform in [-a, a] with a = sqrt(6 / (kernel kernel channels)) (He et al., arXiv
  /// 1502.01852, section 2.2). Bias zero.
  void initialize(std::uint64_t seed) override;

  [[nodiscard]] DType dtype() const override { return settings_.dtype; }
  [[nodiscard]] std::int64_t input_columns() const override { return settings_.image.elements(); }
  [[nodiscard]] std::int64_t output_columns() const override { return output_.elements(); }
  [[nodiscard]] Dims input_extents() const override { return settings_.image.dims(); }
  [[nodiscard]] Dims output_extents() const override { return output_.dims(); }
  [[nodiscard]] std::size_t bytes_after_forward(std::int64_t rows) const override;
  [[nodiscard]] std::size_t bytes_after_input(std::int64_t rows) const override;
  [[nodiscard]] double operations(std::span<const TensorType> inputs) const override;
  [[nodiscard]] std::string describe() const override;

 private:
  [[nodiscard]] std::int64_t depth() const;
  [[nodiscard]] std::int64_t samples_at_once() const;

  Settings settings_;
  ImageShape output_;
  Parameter weight_;
  Parameter bias_;
};

}  // namespace millrace
