// Multilayer perceptrons by their text.

#include "stages/models/text.hpp"

namespace millrace {
namespace {

struct MlpOptions {
  Activation activation = Activation::Relu;
  const char* norm = nullptr;  // a kind of layer
  bool residual = false;
  double rate = 0;
};

std::vector<std::int64_t> read_widths(const ModelText& text, std::string_view widths) {
  std::vector<std::int64_t> numbers;
  for (const std::string_view part : split(widths, '-')) numbers.push_back(read_width(text, part));
  if (numbers.size() < 2) text.refuse("at least two widths are needed, IN and OUT");
  return numbers;
}

/// The kind of layer that "norm" or "norm=KIND" asks for.
std::optional<const char*> read_norm(const ModelText& text, std::string_view option) {
  constexpr std::string_view kNorm = "norm";
  if (!option.starts_with(kNorm)) return std::nullopt;
  const std::string_view kind = option.substr(kNorm.size());
  if (kind.empty() || kind == "=layer") return "layer_norm";
  if (kind == "=rms") return "rms_norm";
  if (kind == "=batch") return "batch_norm";
  text.refuse("unknown norm \"" + std::string(option) + "\"");
}

void read_option(const ModelText& text, std::string_view option, MlpOptions& options) {
  if (const auto activation = read_activation(option)) {
    options.activation = *activation;
  } else if (const auto rate = read_dropout(text, option)) {
    options.rate = *rate;
  } else if (const auto norm = read_norm(text, option)) {
    options.norm = *norm;
  } else if (option == "residual") {
    options.residual = true;
  } else {
    text.refuse("unknown option \"" + std::string(option) + "\"");
  }
}

/// One linear layer of the perceptron with the layers before and after it.
void add_block(std::vector<LayerSpec>& layers,
               const std::vector<std::int64_t>& widths,
               std::size_t i,
               const MlpOptions& options) {
  const bool last = i + 2 == widths.size();
  const LayerValue before{.layer = static_cast<int>(layers.size()) - 1};
  if (options.norm != nullptr && i > 0) layers.push_back({.kind = options.norm, .keep_f32 = true});
  layers.push_back(
      {"linear",
       {{"out", widths[i + 1]}, {"activation", last ? "none" : name_of(options.activation)}}});
  if (last) return;
  if (options.rate > 0) layers.push_back({"dropout", {{"rate", options.rate}}});
  if (!options.residual || i == 0 || widths[i] != widths[i + 1]) return;
  layers.push_back({"add", {}, {before, {.layer = static_cast<int>(layers.size()) - 1}}});
}

}  // namespace

ModelSpec read_mlp(const ModelText& text, std::span<const std::string_view> parts) {
  const auto widths = read_widths(text, parts.front());
  MlpOptions options;
  for (const std::string_view option : parts.subspan(1)) read_option(text, option, options);
  ModelSpec model{.inputs = {{DType::F32, {kSamples, widths.front()}, false}}};
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) add_block(model.layers, widths, i, options);
  return model;
}

}  // namespace millrace
