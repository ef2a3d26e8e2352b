// Residual convolutional networks by their text.
#include <numeric>
#include <utility>

#include "millrace/stages/layer.hpp"
#include "stages/models/text.hpp"

namespace millrace {
namespace {

struct ConvOptions {
  Activation activation = Activation::Relu;
  std::string norm = "batch";
  double rate = 0;
};

struct ConvShape {
  ImageShape image;
  std::vector<std::int64_t> blocks;  // output channels of each
  std::int64_t out = 0;
};

ConvShape read_shape(const ModelText& text, std::string_view widths) {
  const auto parts = split(widths, '-');
  const auto extents = split(parts.front(), 'x');
  if (extents.size() != 3)
    text.refuse("\"" + std::string(parts.front()) + "\" is not an image, HEIGHTxWIDTHxCHANNELS");
  if (parts.size() < 3) text.refuse("an image, at least one block and OUT are needed");
  ConvShape shape;
  shape.image = {.height = read_width(text, extents[0]),
                 .width = read_width(text, extents[1]),
                 .channels = read_width(text, extents[2])};
  for (std::size_t i = 1; i + 1 < parts.size(); ++i)
    shape.blocks.push_back(read_width(text, parts[i]));
  shape.out = read_width(text, parts.back());
  return shape;
}

void read_option(const ModelText& text, std::string_view option, ConvOptions& options) {
  constexpr std::string_view kNorm = "norm=";
  if (const auto activation = read_activation(option)) {
    options.activation = *activation;
  } else if (const auto rate = read_dropout(text, option)) {
    options.rate = *rate;
  } else if (option.starts_with(kNorm)) {
    options.norm = option.substr(kNorm.size());
    if (options.norm != "batch" && options.norm != "group" && options.norm != "none")
      text.refuse("unknown norm \"" + options.norm + "\"; known are batch, group, none");
  } else {
    text.refuse("unknown option \"" + std::string(option) + "\"");
  }
}

/// Layers so far, each taking what lies before it unless it says otherwise.
class Layers {
 public:
  explicit Layers(const ConvOptions& options) : options_(options) {}

  [[nodiscard]] LayerValue last() const { return {.layer = static_cast<int>(layers_.size()) - 1}; }

  void add(LayerSpec layer) { layers_.push_back(std::move(layer)); }

  void add_convolution(std::int64_t out, std::int64_t stride, std::vector<LayerValue> of = {}) {
    add({"conv2d",
         {{"out", out},
          {"kernel", std::int64_t{3}},
          {"stride", stride},
          {"padding", std::int64_t{1}}},
         std::move(of)});
    add_norm(out);
  }

  /// A 1x1 convolution of what came into a block that changes its shape.
  void add_projection(std::int64_t out, std::int64_t stride, LayerValue of) {
    add({"conv2d", {{"out", out}, {"kernel", std::int64_t{1}}, {"stride", stride}}, {of}});
    add_norm(out);
  }

  void add_activation() { add({"activation", {{"function", name_of(options_.activation)}}}); }

  /// Two convolutions, and what came in added to what they give: He et al., arXiv 1512.03385,
  /// figure 2 and section 3.3 (option B).
  void add_block(std::int64_t in, std::int64_t out, std::int64_t stride) {
    LayerValue skipped = last();
    add_convolution(out, stride);
    add_activation();
    add_convolution(out, 1);
    const LayerValue branch = last();
    if (in != out || stride != 1) {
      add_projection(out, stride, skipped);
      skipped = last();
    }
    add({"add", {}, {skipped, branch}});
    add_activation();
  }

  [[nodiscard]] std::vector<LayerSpec> take() { return std::move(layers_); }

 private:
  void add_norm(std::int64_t channels) {
    if (options_.norm == "batch") add({.kind = "batch_norm", .keep_f32 = true});
    if (options_.norm == "group")
      add({.kind = "group_norm",
           .settings = {{"groups", std::gcd(channels, std::int64_t{8})}},
           .keep_f32 = true});
  }

  ConvOptions options_;
  std::vector<LayerSpec> layers_;
};

}  // namespace

ModelSpec read_conv(const ModelText& text, std::span<const std::string_view> parts) {
  const ConvShape shape = read_shape(text, parts.front());
  ConvOptions options;
  for (const std::string_view option : parts.subspan(1)) read_option(text, option, options);
  Layers layers(options);
  layers.add({"reshape", {{"to", to_string(shape.image.dims())}}});
  std::int64_t channels = shape.blocks.front();
  layers.add_convolution(channels, 1);
  layers.add_activation();
  for (std::size_t i = 0; i < shape.blocks.size(); ++i) {
    layers.add_block(channels, shape.blocks[i], i == 0 ? 1 : 2);
    channels = shape.blocks[i];
  }
  layers.add({"average_pool"});
  layers.add({"reshape", {{"to", std::to_string(channels)}}});
  if (options.rate > 0) layers.add({"dropout", {{"rate", options.rate}}});
  layers.add({"linear", {{"out", shape.out}}});
  return {.inputs = {{DType::F32, {kSamples, shape.image.elements()}, false}},
          .layers = layers.take()};
}

}  // namespace millrace
