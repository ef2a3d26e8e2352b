// Max and average pooling over the windows of an image.
#include <cmath>
#include <cstdint>
#include <fmt/format.h>
#include <limits>
#include <string>
#include <utility>

#include "millrace/stages/layer.hpp"
#include "stages/kernels/precision.hpp"
#include "stages/kernels/windows.hpp"
#include "stages/layers/check.hpp"
#include "stages/layers/kinds.hpp"

namespace millrace {
namespace {

enum class Pool : std::uint8_t { Max, Average };

/// body(place of channel 0 in the image) for every pixel of a window.
template <class Body>
void for_each_pixel(const ImageShape& image,
                    const WindowSpan& down,
                    const WindowSpan& across,
                    const Body& body) {
  for (std::int64_t u = down.first; u < down.last; ++u)
    for (std::int64_t v = across.first; v < across.last; ++v)
      body(((down.start + u) * image.width + across.start + v) * image.channels);
}

/// The maxima of one image, and their places in it.
template <class T>
void take_maxima(const WindowedImage& of, const T* x, T* y, std::int32_t* places) {
  const std::int64_t channels = of.image.channels;
  const auto window = [&](const WindowSpan& down, const WindowSpan& across) {
    std::fill_n(y, channels, -std::numeric_limits<T>::infinity());
    std::fill_n(places, channels, -1);
    for_each_pixel(of.image, down, across, [&](std::int64_t at) {
      for (std::int64_t c = 0; c < channels; ++c) {
        const T value = x[at + c];
        if (!(value > y[c] || std::isnan(value) || places[c] < 0)) continue;
        y[c] = value;
        places[c] = static_cast<std::int32_t>(at + c);
      }
    });
    y += channels;
    places += channels;
  };
  for_each_window(of, window);
}

template <class T>
void take_means(const WindowedImage& of, const T* x, T* y) {
  const std::int64_t channels = of.image.channels;
  const T share = T(1) / static_cast<T>(of.window.pixels());
  const auto window = [&](const WindowSpan& down, const WindowSpan& across) {
    std::fill_n(y, channels, T(0));
    for_each_pixel(of.image, down, across, [&](std::int64_t at) {
      for (std::int64_t c = 0; c < channels; ++c) y[c] += x[at + c];
    });
    for (std::int64_t c = 0; c < channels; ++c) y[c] *= share;
    y += channels;
  };
  for_each_window(of, window);
}

template <class T>
void add_mean_gradients(const WindowedImage& of, const T* dy, T* dx) {
  const std::int64_t channels = of.image.channels;
  const T share = T(1) / static_cast<T>(of.window.pixels());
  const auto window = [&](const WindowSpan& down, const WindowSpan& across) {
    for_each_pixel(of.image, down, across, [&](std::int64_t at) {
      for (std::int64_t c = 0; c < channels; ++c) dx[at + c] += dy[c] * share;
    });
    dy += channels;
  };
  for_each_window(of, window);
}

/// Without a kernel: one window over the whole image.
WindowedImage pooling_of(const LayerSettings& settings,
                         const TensorType& input,
                         const LayerPlace& place) {
  const ImageShape image = image_of(input);
  const std::int64_t kernel = settings.integer("kernel", 0);
  require(kernel >= 0, "the kernel must be at least 1, got " + std::to_string(kernel));
  const Window window{.kernel_height = kernel == 0 ? image.height : kernel,
                      .kernel_width = kernel == 0 ? image.width : kernel,
                      .stride = settings.integer("stride", std::max<std::int64_t>(kernel, 1)),
                      .padding = settings.integer("padding", 0)};
  const std::string who = "layers." + std::to_string(place.number) + ": pooling";
  const ImageShape output = window.over(image, who);
  require(image.elements() <= std::numeric_limits<std::int32_t>::max(),
          who + ": an image of " + to_string(image.dims()) + " is too large");
  return {image, window, output};
}

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
  /// Throws InvalidArgument when an extent is below 1, the window does not fit (see Window), an
  /// image has more than 2^31 numbers, or the dtype is neither f32 nor f64.
  Pooling(const LayerSettings& settings,
          std::span<const TensorType> inputs,
          const LayerPlace& place,
          Pool pool)
      : Pooling(pooling_of(settings, inputs[0], place), place, pool) {}

  Tensor forward_rows(const PassContext& context, Tensor input, Stash& stash) override {
    const std::int64_t samples = input.rows();
    Tensor output = context.make(dtype(), {samples, output_columns()});
    Tensor places;
    if (pool_ == Pool::Max) places = context.make(DType::I32, output.dims());
    with_precision(dtype(), [&]<class T>(T) {
      for (std::int64_t n = 0; n < samples; ++n) {
        const T* x = values<T>(std::as_const(input)) + n * input_columns();
        T* y = values<T>(output) + n * output_columns();
        if (places) {
          auto* at = values<std::int32_t>(places) + n * output_columns();
          take_maxima(of_, x, y, at);
        } else {
          take_means(of_, x, y);
        }
      }
    });
    if (context.training && places) stash.keep(context, std::move(places));
    return output;
  }
  Tensor backward_rows(const PassContext& context,
                       Tensor output_gradient,
                       Stash& stash,
                       bool wanted) override {
    Tensor input_gradient;
    if (wanted) {
      const std::int64_t samples = output_gradient.rows();
      input_gradient = context.make(dtype(), {samples, input_columns()});
      input_gradient.fill_zero();
      Tensor places;
      if (pool_ == Pool::Max) places = stash.take(context, 0);
      with_precision(dtype(), [&]<class T>(T) {
        for (std::int64_t n = 0; n < samples; ++n) {
          const T* dy = values<T>(std::as_const(output_gradient)) + n * output_columns();
          T* dx = values<T>(input_gradient) + n * input_columns();
          if (places) {
            const auto* at = values<std::int32_t>(places) + n * output_columns();
            for (std::int64_t i = 0; i < output_columns(); ++i) dx[at[i]] += dy[i];
          } else {
            add_mean_gradients(of_, dy, dx);
          }
        }
      });
    }
    stash.clear(context);
    return input_gradient;
  }

  [[nodiscard]] std::size_t bytes_after_forward(std::int64_t rows) const override {
    if (pool_ == Pool::Average) return 0;
    return size_of(DType::I32) * static_cast<std::size_t>(rows * output_columns());
  }
  [[nodiscard]] std::string describe() const override {
    return fmt::format("layers.{}: {} pooling {}->{}",
                       number(),
                       pool_ == Pool::Max ? "max" : "average",
                       to_string(input_extents()),
                       to_string(output_extents()));
  }

 private:
  Pooling(const WindowedImage& of, const LayerPlace& place, Pool pool)
      : RowLayer(place, of.image.dims(), of.output.dims()), of_(of), pool_(pool) {
    require_float(dtype(), describe());
  }

  WindowedImage of_;
  Pool pool_;
};

}  // namespace

LayerKind max_pool_kind() {
  return kind_of<Pooling>("max_pool", {"kernel", "stride", "padding"}, Pool::Max);
}

LayerKind average_pool_kind() {
  return kind_of<Pooling>("average_pool", {"kernel", "stride", "padding"}, Pool::Average);
}

}  // namespace millrace
