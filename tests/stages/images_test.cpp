// Layers of images against the sums of their definitions, written out one output number at a time.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/stages/layer.hpp"
#include "stages/layer_probe.hpp"

namespace millrace::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr ImageShape kImage{.height = 5, .width = 7, .channels = 3};
constexpr std::int64_t kSamplesGiven = 2;

/// Windows that touch, overlap, leave pixels out and go beyond the border.
std::vector<Window> windows() {
  return {{1, 1, 1, 0},
          {1, 1, 2, 0},
          {2, 2, 2, 0},
          {3, 3, 1, 1},
          {3, 3, 2, 1},
          {3, 3, 3, 1},
          {4, 4, 1, 2},
          {5, 5, 1, 2}};
}

/// Those, and the whole image.
std::vector<Window> pooling_windows() {
  std::vector<Window> all = windows();
  all.push_back({kImage.height, kImage.width, 1, 0});
  return all;
}

LayerSettings settings_of(const Window& window) {
  const bool square = window.kernel_height == window.kernel_width;
  return {{"kernel", square ? window.kernel_height : 0},
          {"stride", window.stride},
          {"padding", window.padding}};
}

std::unique_ptr<Layer> convolution(const ImageShape& image, const Window& window) {
  LayerSettings settings = settings_of(window);
  settings.set("out", std::int64_t{4});
  return built("conv2d", settings, {1, image.height, image.width, image.channels});
}

std::unique_ptr<Layer> pooling(const char* kind,
                               const ImageShape& image,
                               const Window& window,
                               DType dtype = DType::F64) {
  return built(kind, settings_of(window), {1, image.height, image.width, image.channels}, dtype);
}

Tensor drawn_images() {
  return drawn(DType::F64, {kSamplesGiven, kImage.height, kImage.width, kImage.channels}, 1);
}

/// A pixel's number, or `outside` beyond the border.
double at(const Tensor& images,
          std::int64_t n,
          std::int64_t i,
          std::int64_t j,
          std::int64_t c,
          double outside) {
  if (i < 0 || j < 0 || i >= kImage.height || j >= kImage.width) return outside;
  return images.as<double>()[static_cast<std::size_t>(
      ((n * kImage.height + i) * kImage.width + j) * kImage.channels + c)];
}

/// Compares every number of the layer's output with value(sample, output row, output column,
/// channel).
template <class Value>
void expect_outputs(Layer& layer, const Tensor& images, const Value& value) {
  Stash stash;
  PassContext context = training_context();
  context.training = false;
  const TensorList outputs = layer.forward(context, TensorList(images.clone()), stash);
  const Dims& dims = outputs[0].dims();
  std::size_t place = 0;
  for (std::int64_t n = 0; n < dims[0]; ++n)
    for (std::int64_t i = 0; i < dims[1]; ++i)
      for (std::int64_t j = 0; j < dims[2]; ++j)
        for (std::int64_t c = 0; c < dims[3]; ++c)
          ASSERT_NEAR(outputs[0].as<double>()[place++], value(n, i, j, c), 1e-12)
              << layer.describe();
}

TEST(Convolution, IsTheSumOverItsWindow) {
  const Tensor images = drawn_images();
  for (const Window& window : windows()) {
    const auto layer = convolution(kImage, window);
    Tensor& weight = layer->parameters()[0]->value;
    Tensor& bias = layer->parameters()[1]->value;
    bias = drawn(DType::F64, {4}, 9);
    expect_outputs(*layer, images, [&](auto n, auto i, auto j, auto out) {
      double sum = bias.as<double>()[static_cast<std::size_t>(out)];
      std::size_t k = static_cast<std::size_t>(out);
      for (std::int64_t u = 0; u < window.kernel_height; ++u)
        for (std::int64_t v = 0; v < window.kernel_width; ++v)
          for (std::int64_t c = 0; c < kImage.channels; ++c, k += 4)
            sum += weight.as<double>()[k] * at(images,
                                               n,
                                               i * window.stride - window.padding + u,
                                               j * window.stride - window.padding + v,
                                               c,
                                               0);
      return sum;
    });
  }
}

TEST(Convolution, GivesTheSameForManySamplesAsForEach) {
  const auto layer = convolution({.height = 16, .width = 16, .channels = 16}, {3, 3, 1, 1});
  PassContext context = training_context();
  context.training = false;
  Stash stash;
  Tensor images = drawn(DType::F64, {9, 16, 16, 16}, 2);
  const TensorList whole = layer->forward(context, TensorList(images.clone()), stash);
  for (std::int64_t n = 0; n < 9; ++n) {
    const TensorList one =
        layer->forward(context, TensorList(images.borrow_rows(n, 1).clone()), stash);
    for (std::size_t i = 0; i < one[0].as<double>().size(); ++i)
      ASSERT_NEAR(
          one[0].as<double>()[i],
          whole[0].as<double>()[static_cast<std::size_t>(n) * one[0].as<double>().size() + i],
          1e-12);
  }
}

TEST(MaxPooling, IsTheLargestOfItsWindow) {
  const Tensor images = drawn_images();
  for (const Window& window : pooling_windows()) {
    const auto layer = pooling("max_pool", kImage, window);
    expect_outputs(*layer, images, [&](auto n, auto i, auto j, auto c) {
      double largest = -INFINITY;
      for (std::int64_t u = 0; u < window.kernel_height; ++u)
        for (std::int64_t v = 0; v < window.kernel_width; ++v)
          largest = std::max(largest,
                             at(images,
                                n,
                                i * window.stride - window.padding + u,
                                j * window.stride - window.padding + v,
                                c,
                                -INFINITY));
      return largest;
    });
  }
}

TEST(MaxPooling, EqualNumbers_FirstTakesTheGradient) {
  const auto layer =
      pooling("max_pool", {.height = 2, .width = 2, .channels = 1}, {2, 2, 1, 0}, DType::F32);
  Tensor image(DType::F32, {1, 2, 2, 1});
  std::ranges::copy(std::vector<float>{1, 3, 3, 3}, image.as<float>().begin());
  Stash stash;
  (void)layer->forward(training_context(), TensorList(std::move(image)), stash);
  Tensor gradient(DType::F32, {1, 1, 1, 1});
  gradient.as<float>()[0] = 5;
  const TensorList given =
      layer->backward_input(training_context(), TensorList(std::move(gradient)), stash, true);
  EXPECT_THAT(given[0].as<float>(), testing::ElementsAre(0, 5, 0, 0));
}

TEST(MaxPooling, LetsWhatIsNoNumberWin) {
  const auto layer =
      pooling("max_pool", {.height = 1, .width = 3, .channels = 1}, {1, 3, 1, 0}, DType::F32);
  for (std::size_t place = 0; place < 3; ++place) {
    Tensor image(DType::F32, {1, 1, 3, 1});
    std::ranges::copy(std::vector<float>{1, 2, 3}, image.as<float>().begin());
    image.as<float>()[place] = NAN;
    Stash stash;
    const TensorList output =
        layer->forward(training_context(), TensorList(std::move(image)), stash);
    EXPECT_TRUE(std::isnan(output[0].as<float>()[0])) << place;
  }
}

TEST(AveragePooling, IsTheMeanOfThePaddedWindow) {
  const Tensor images = drawn_images();
  for (const Window& window : pooling_windows()) {
    const auto layer = pooling("average_pool", kImage, window);
    expect_outputs(*layer, images, [&](auto n, auto i, auto j, auto c) {
      double sum = 0;
      for (std::int64_t u = 0; u < window.kernel_height; ++u)
        for (std::int64_t v = 0; v < window.kernel_width; ++v)
          sum += at(images,
                    n,
                    i * window.stride - window.padding + u,
                    j * window.stride - window.padding + v,
                    c,
                    0);
      return sum / static_cast<double>(window.pixels());
    });
  }
}

TEST(GroupNormalisation, IsByMeanAndVarianceOfTheGroup) {
  constexpr std::int64_t kChannels = 6;
  const Tensor images = drawn(DType::F64, {2, 3, 5, kChannels}, 1);
  const auto number = [&](std::int64_t n, std::int64_t pixel, std::int64_t c) {
    return images.as<double>()[static_cast<std::size_t>((n * 15 + pixel) * kChannels + c)];
  };
  for (const std::int64_t groups : {1, 2, 3, 6}) {
    const auto layer = built("group_norm", {{"groups", groups}}, {2, 3, 5, kChannels});
    expect_outputs(*layer, images, [&](auto n, auto i, auto j, auto channel) {
      const std::int64_t width = kChannels / groups;
      const std::int64_t first = channel / width * width;
      double sum = 0;
      double squares = 0;
      for (std::int64_t pixel = 0; pixel < 15; ++pixel)
        for (std::int64_t c = first; c < first + width; ++c) {
          sum += number(n, pixel, c);
          squares += number(n, pixel, c) * number(n, pixel, c);
        }
      const double mean = sum / static_cast<double>(15 * width);
      const double variance = squares / static_cast<double>(15 * width) - mean * mean;
      return (number(n, i * 5 + j, channel) - mean) / std::sqrt(variance + 1e-5);
    });
  }
}

TEST(Images, SayWhatDoesNotFit) {
  const TensorType image{DType::F32, {kSamples, 5, 4, 6}};
  const TensorType rows{DType::F32, {kSamples, 6}};
  const TensorType sequence{DType::F32, {kSamples, kPositions, 4, 6}};
  const auto whole = [](std::int64_t number) { return number; };
  const struct {
    LayerSpec spec;
    TensorType type;
    const char* why;
  } faults[] = {
      {{"conv2d", {{"out", whole(2)}, {"kernel", whole(3)}}}, rows, "takes images"},
      {{"max_pool"}, sequence, "takes images"},
      {{"conv2d", {{"out", whole(2)}}}, image, "'kernel' must be given"},
      {{"conv2d", {{"out", whole(0)}, {"kernel", whole(1)}}}, image, "at least 1 output channel"},
      {{"conv2d", {{"out", whole(2)}, {"kernel", whole(5)}}},
       image,
       "a kernel of 5x5 does not fit into an image of 5x4 with padding 0"},
      {{"conv2d", {{"out", whole(2)}, {"kernel", whole(3)}, {"padding", whole(2)}}},
       image,
       "padding must be from 0 to half the kernel, 1, got 2"},
      {{"max_pool", {{"kernel", whole(2)}, {"stride", whole(0)}}}, image, "stride 0"},
      {{"average_pool", {{"kernel", whole(-1)}}}, image, "kernel must be at least 1, got -1"},
      {{"group_norm", {{"groups", whole(4)}}}, image, "groups must divide the 6 channels, got 4"},
      {{"group_norm", {{"groups", whole(1)}}}, sequence, "must be known"},
      {{"reshape", {{"to", "5x4"}}}, image, "as many numbers"},
      {{"reshape", {{"to", "5x-4"}}}, image, "extents of at least 1"},
      {{"reshape"}, image, "extents of at least 1, as in 8x8x1, got ''"},
      {{"batch_norm", {{"momentum", 0.0}}}, image, "momentum must be above 0"},
      {{"batch_norm", {{"statistics", "never"}}}, image, "known are deferred, immediate"},
  };
  for (const auto& fault : faults)
    EXPECT_THAT([&] { (void)build_layer(fault.spec, std::vector{fault.type}, {}); },
                ThrowsMessage<InvalidArgument>(HasSubstr(fault.why)))
        << fault.why;
}

}  // namespace
}  // namespace millrace::test
