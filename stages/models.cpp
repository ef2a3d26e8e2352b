// Reading a model's text, and building its layers and stages.
#include "millrace/stages/models.hpp"

#include <charconv>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/stages/dropout.hpp"
#include "millrace/stages/layer_norm.hpp"
#include "millrace/stages/linear.hpp"
#include "millrace/stages/partition.hpp"

namespace millrace {
namespace {

constexpr const char* kForm =
    "mlp:IN-HIDDEN-...-OUT[,relu|gelu|tanh][,norm][,dropout=RATE], for example mlp:64-96-10";
constexpr std::int64_t kWidest = 1 << 24;

[[noreturn]] void reject(std::string_view text, const std::string& why) {
  throw InvalidArgument("model \"" + std::string(text) + "\": " + why + "; the form is " + kForm);
}

template <class Number>
bool read_number(std::string_view text, Number& number) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, number);
  return result.ec == std::errc{} && result.ptr == end;
}

/// Cuts `text` at `separator`; an empty text is one empty part.
std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

struct MlpOptions {
  Activation activation = Activation::Relu;
  bool norm = false;
  double rate = 0;
};

std::vector<std::int64_t> read_widths(std::string_view text, std::string_view widths) {
  std::vector<std::int64_t> numbers;
  for (const std::string_view part : split(widths, '-')) {
    std::int64_t width = 0;
    if (!read_number(part, width) || width < 1 || width > kWidest)
      reject(text, "width \"" + std::string(part) + "\" is not a number from 1 to 16777216");
    numbers.push_back(width);
  }
  if (numbers.size() < 2) reject(text, "at least two widths are needed, IN and OUT");
  return numbers;
}

void read_option(std::string_view text, std::string_view option, MlpOptions& options) {
  for (const Activation activation : {Activation::Relu, Activation::Gelu, Activation::Tanh})
    if (option == name_of(activation)) {
      options.activation = activation;
      return;
    }
  if (option == "norm") {
    options.norm = true;
    return;
  }
  constexpr std::string_view kDropout = "dropout=";
  if (!option.starts_with(kDropout)) reject(text, "unknown option \"" + std::string(option) + "\"");
  const std::string_view rate = option.substr(kDropout.size());
  if (!read_number(rate, options.rate) || !(options.rate >= 0 && options.rate < 1))
    reject(text, "dropout \"" + std::string(rate) + "\" is not a rate from 0 to below 1");
}

LayerSpec same_width(LayerKind kind, std::int64_t width) {
  return {.kind = kind, .in = width, .out = width};
}

std::vector<LayerSpec> mlp_layers(const std::vector<std::int64_t>& widths,
                                  const MlpOptions& options) {
  std::vector<LayerSpec> layers;
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
    const bool last = i + 2 == widths.size();
    if (options.norm && i > 0) layers.push_back(same_width(LayerKind::LayerNorm, widths[i]));
    layers.push_back({.kind = LayerKind::Linear,
                      .in = widths[i],
                      .out = widths[i + 1],
                      .activation = last ? Activation::None : options.activation});
    if (last || options.rate == 0) continue;
    layers.push_back(same_width(LayerKind::Dropout, widths[i + 1]));
    layers.back().rate = options.rate;
  }
  return layers;
}

}  // namespace

ModelSpec parse_model(std::string_view text) {
  constexpr std::string_view kPrefix = "mlp:";
  if (!text.starts_with(kPrefix)) reject(text, "unknown kind of model");
  const auto parts = split(text.substr(kPrefix.size()), ',');
  const auto widths = read_widths(text, parts.front());
  MlpOptions options;
  for (std::size_t i = 1; i < parts.size(); ++i) read_option(text, parts[i], options);
  return {.text = std::string(text), .layers = mlp_layers(widths, options)};
}

std::unique_ptr<Layer> build_layer(const LayerSpec& spec, std::uint32_t number, DType dtype) {
  switch (spec.kind) {
    case LayerKind::Linear:
      return std::make_unique<Linear>(Linear::Settings{.in = spec.in,
                                                       .out = spec.out,
                                                       .activation = spec.activation,
                                                       .dtype = dtype,
                                                       .layer = number});
    case LayerKind::Activation:
      return std::make_unique<ActivationLayer>(
          "layers." + std::to_string(number), spec.activation, spec.in, dtype);
    case LayerKind::LayerNorm:
      return std::make_unique<LayerNorm>(
          LayerNorm::Settings{.columns = spec.in, .dtype = dtype, .layer = number});
    case LayerKind::Dropout:
      return std::make_unique<Dropout>(Dropout::Settings{
          .columns = spec.in, .rate = spec.rate, .dtype = dtype, .layer = number});
  }
  throw InvalidArgument("unknown kind of layer");
}

std::unique_ptr<Loss> build_loss(LossKind kind) {
  if (kind == LossKind::MeanSquaredError) return std::make_unique<MeanSquaredError>();
  return std::make_unique<SoftmaxCrossEntropy>();
}

std::unique_ptr<StageModule> build_stage(const ModelSpec& model,
                                         std::span<const int> boundaries,
                                         int stage,
                                         std::uint64_t seed) {
  check_boundaries(boundaries, model.layer_count());
  const int stages = static_cast<int>(boundaries.size()) - 1;
  require(stage >= 0 && stage < stages,
          "stage " + std::to_string(stage) + " of " + std::to_string(stages) + " does not exist");
  const auto first = static_cast<std::size_t>(stage);
  std::vector<std::unique_ptr<Layer>> layers;
  for (int i = boundaries[first]; i < boundaries[first + 1]; ++i) {
    layers.push_back(build_layer(
        model.layers[static_cast<std::size_t>(i)], static_cast<std::uint32_t>(i), model.dtype));
    layers.back()->initialize(seed);
  }
  return std::make_unique<StageModule>(
      std::move(layers),
      StageModule::Settings{.first = stage == 0,
                            .loss = stage + 1 == stages ? build_loss(model.loss) : nullptr});
}

std::vector<std::unique_ptr<StageModule>> build_stages(const ModelSpec& model,
                                                       std::span<const int> boundaries,
                                                       std::uint64_t seed) {
  check_boundaries(boundaries, model.layer_count());
  std::vector<std::unique_ptr<StageModule>> stages;
  for (int s = 0; s + 1 < static_cast<int>(boundaries.size()); ++s)
    stages.push_back(build_stage(model, boundaries, s, seed));
  return stages;
}

}  // namespace millrace
