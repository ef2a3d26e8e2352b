// Two-dimensional convolution as a matrix product over the windows of an image.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fmt/format.h>
#include <string>
#include <utility>

#include "millrace/stages/layer.hpp"
#include "stages/kernels/precision.hpp"
#include "stages/kernels/product.hpp"
#include "stages/kernels/reductions.hpp"
#include "stages/kernels/windows.hpp"
#include "stages/layers/check.hpp"
#include "stages/layers/kinds.hpp"
#include "stages/layers/parameters.hpp"

namespace millrace {
namespace {

WindowedImage convolution_of(const LayerSettings& settings,
                             const TensorType& input,
                             const LayerPlace& place) {
  const std::string who = "layers." + std::to_string(place.number) + ": convolution";
  const std::int64_t kernel = settings.integer("kernel");
  const std::int64_t out = settings.integer("out");
  WindowedImage of{.image = image_of(input),
                   .window = {.kernel_height = kernel,
                              .kernel_width = kernel,
                              .stride = settings.integer("stride", 1),
                              .padding = settings.integer("padding", 0)}};
  require(out >= 1, who + " needs at least 1 output channel, got " + std::to_string(out));
  of.output = of.window.over(of.image, who);
  of.output.channels = out;
  return of;
}

constexpr std::size_t kImages = 0;
constexpr std::size_t kOutputGradient = 1;

/// Numbers of window rows laid out at once: half a megabyte of f32.
constexpr std::int64_t kRowsElements = 1 << 17;

/// body(first sample, samples) for runs of at most `at_once` samples, in order.
template <class Body>
void for_each_run(std::int64_t samples, std::int64_t at_once, const Body& body) {
  for (std::int64_t first = 0; first < samples; first += at_once)
    body(first, std::min(at_once, samples - first));
}

/// The windows of samples [first, first + count) as rows.
template <class T>
void lay_out(const WindowedImage& of, const T* x, std::int64_t count, T* rows) {
  for (std::int64_t n = 0; n < count; ++n)
    to_windows(of, x + n * of.image.elements(), rows + n * of.output.pixels() * of.depth());
}

/// y[n, i, j, :] = b + sum over (u, v, c) of x[n, i stride - padding + u, j stride - padding + v,
/// c] W[u, v, c, :], pixels outside the image being 0; x [samples, height, width, channels],
/// channels last, W [kernel, kernel, channels, out], b [out].
///
/// It is the linear map of rows that im2col lays out, one row of kernel kernel channels numbers for
/// every output pixel (Chellapilla, Puri and Simard, "High Performance WindowedImageal Neural
/// Networks for Document Processing", 2006, section 2.1); it does so for few samples at a time, so
/// that the rows stay in cache, and again in W, so that F keeps x alone. With dz = dy:
/// I: dx = the rows dz W^T added back to the pixels they came from, keeps dz too; W: dW += rows^T
/// dz, db += sums of dz over pixels in their order.
/// Cost: one product of 2 (samples pixels) (kernel kernel channels) out operations per pass.
/// Bits: depend on the shapes and the instruction set only. Thread-safety: externally synchronised.
class Conv2d final : public RowLayer {
 public:
  /// Throws InvalidArgument when an extent or out is below 1, the window does not fit (see Window),
  /// or the dtype is neither f32 nor f64.
  Conv2d(const LayerSettings& settings, std::span<const TensorType> inputs, const LayerPlace& place)
      : Conv2d(convolution_of(settings, inputs[0], place), place) {}

  Tensor forward_rows(const PassContext& context, Tensor input, Stash& stash) override {
    const std::int64_t at_once = std::min(samples_at_once(), input.rows());
    Tensor output = context.make(dtype(), {input.rows(), output_columns()});
    Tensor rows = context.make(dtype(), {at_once * of_.output.pixels(), of_.depth()});
    with_precision(dtype(), [&]<class T>(T) {
      const T* bias = values<T>(std::as_const(bias_.value));
      T* y = values<T>(output);
      for (std::int64_t i = 0; i < input.rows() * of_.output.pixels(); ++i)
        std::copy_n(bias, of_.output.channels, y + i * of_.output.channels);
      for_each_run(input.rows(), at_once, [&](std::int64_t first, std::int64_t count) {
        const T* x = values<T>(std::as_const(input)) + first * input_columns();
        lay_out(of_, x, count, values<T>(rows));
        add_forward<T>(context,
                       {count * of_.output.pixels(), of_.depth(), of_.output.channels},
                       values<T>(rows),
                       values<T>(weight_.value),
                       y + first * output_columns());
      });
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
      const std::int64_t samples = output_gradient.rows();
      const std::int64_t at_once = std::min(samples_at_once(), samples);
      input_gradient = context.make(dtype(), {samples, input_columns()});
      input_gradient.fill_zero();
      Tensor rows = context.make(dtype(), {at_once * of_.output.pixels(), of_.depth()});
      with_precision(dtype(), [&]<class T>(T) {
        const T* dz = values<T>(std::as_const(output_gradient));
        T* dx = values<T>(input_gradient);
        for_each_run(samples, at_once, [&](std::int64_t first, std::int64_t count) {
          make_input_gradient<T>(context,
                                 {count * of_.output.pixels(), of_.depth(), of_.output.channels},
                                 dz + first * output_columns(),
                                 values<T>(weight_.value),
                                 values<T>(rows));
          for (std::int64_t n = 0; n < count; ++n)
            add_from_windows(of_,
                             values<T>(rows) + n * of_.output.pixels() * of_.depth(),
                             dx + (first + n) * input_columns());
        });
      });
    }
    stash.keep(context, std::move(output_gradient));
    return input_gradient;
  }
  void backward_weight(const PassContext& context, Stash& stash) override {
    const Tensor input = stash.read(context, kImages);
    const Tensor gradient = stash.read(context, kOutputGradient);
    const std::int64_t at_once = std::min(samples_at_once(), input.rows());
    Tensor rows = context.make(dtype(), {at_once * of_.output.pixels(), of_.depth()});
    with_precision(dtype(), [&]<class T>(T) {
      const T* dz = values<T>(gradient);
      for_each_run(input.rows(), at_once, [&](std::int64_t first, std::int64_t count) {
        const T* x = values<T>(input) + first * input_columns();
        lay_out(of_, x, count, values<T>(rows));
        add_weight_gradient<T>(context,
                               {count * of_.output.pixels(), of_.depth(), of_.output.channels},
                               values<T>(rows),
                               dz + first * output_columns(),
                               values<T>(weight_.gradient));
      });
      add_column_sums(context,
                      dz,
                      gradient.rows() * of_.output.pixels(),
                      of_.output.channels,
                      values<T>(bias_.gradient));
    });
    stash.clear(context);
  }

  [[nodiscard]] std::vector<Parameter*> parameters() override { return {&weight_, &bias_}; }
  /// Weights uniform in [-a, a] with a = sqrt(6 / (kernel kernel channels)) (He et al., arXiv
  /// 1502.01852, section 2.2). Bias zero.
  void initialize(std::uint64_t seed) override {
    const Window& window = of_.window;
    allocate(weight_,
             dtype(),
             {window.kernel_height, window.kernel_width, of_.image.channels, of_.output.channels});
    allocate(bias_, dtype(), {of_.output.channels});
    const RandomKey key{.seed = seed, .purpose = Purpose::Initialize, .layer = number()};
    fill_uniform(weight_.value, key, std::sqrt(6.0 / static_cast<double>(of_.depth())));
  }

  [[nodiscard]] std::size_t bytes_after_forward(std::int64_t rows) const override {
    return kept_bytes(rows * input_columns());
  }
  [[nodiscard]] std::size_t bytes_after_input(std::int64_t rows) const override {
    return kept_bytes(rows * (input_columns() + output_columns()));
  }
  [[nodiscard]] double operations(std::span<const TensorType> inputs) const override {
    return 2.0 * static_cast<double>(inputs[0].dims.elements() / input_columns()) *
           static_cast<double>(output_columns() * of_.depth());
  }
  [[nodiscard]] std::string describe() const override {
    return fmt::format("layers.{}: convolution {}->{} by {}",
                       number(),
                       to_string(input_extents()),
                       to_string(output_extents()),
                       to_string(Dims{of_.window.kernel_height, of_.window.kernel_width}));
  }

 private:
  Conv2d(const WindowedImage& of, const LayerPlace& place)
      : RowLayer(place, of.image.dims(), of.output.dims()),
        of_(of),
        weight_(parameter_of(number(), "weight", true)),
        bias_(parameter_of(number(), "bias", false)) {
    require_float(dtype(), describe());
  }

  [[nodiscard]] std::int64_t samples_at_once() const {
    return std::max<std::int64_t>(1, kRowsElements / (of_.output.pixels() * of_.depth()));
  }

  WindowedImage of_;
  Parameter weight_;
  Parameter bias_;
};

}  // namespace

LayerKind conv2d_kind() {
  return kind_of<Conv2d>("conv2d", {"out", "kernel", "stride", "padding"});
}

}  // namespace millrace
