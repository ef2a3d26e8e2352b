// Multilayer perceptrons by their text.
#include <charconv>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/stages/models.hpp"

namespace millrace {
namespace {

constexpr const char* kForm =
    "mlp:IN-HIDDEN-...-OUT[,relu|gelu|tanh][,norm][,residual][,dropout=RATE], for example "
    "mlp:64-96-10";
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
  bool residual = false;
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
  if (option == "norm" || option == "residual") {
    (option == "norm" ? options.norm : options.residual) = true;
    return;
  }
  constexpr std::string_view kDropout = "dropout=";
  if (!option.starts_with(kDropout)) reject(text, "unknown option \"" + std::string(option) + "\"");
  const std::string_view rate = option.substr(kDropout.size());
  if (!read_number(rate, options.rate) || !(options.rate >= 0 && options.rate < 1))
    reject(text, "dropout \"" + std::string(rate) + "\" is not a rate from 0 to below 1");
}

/// One linear layer of the perceptron with what goes before and behind it.
void add_block(std::vector<LayerSpec>& layers,
               const std::vector<std::int64_t>& widths,
               std::size_t i,
               const MlpOptions& options) {
  const bool last = i + 2 == widths.size();
  const LayerValue before{.layer = static_cast<int>(layers.size()) - 1};
  if (options.norm && i > 0) layers.push_back({.kind = "layer_norm", .keep_f32 = true});
  layers.push_back(
      {"linear",
       {{"out", widths[i + 1]}, {"activation", last ? "none" : name_of(options.activation)}}});
  if (last) return;
  if (options.rate > 0) layers.push_back({"dropout", {{"rate", options.rate}}});
  if (!options.residual || i == 0 || widths[i] != widths[i + 1]) return;
  layers.push_back({"add", {}, {before, {.layer = static_cast<int>(layers.size()) - 1}}});
}

std::vector<LayerSpec> mlp_layers(const std::vector<std::int64_t>& widths,
                                  const MlpOptions& options) {
  std::vector<LayerSpec> layers;
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) add_block(layers, widths, i, options);
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
  return {.text = std::string(text),
          .inputs = {{DType::F32, {kSamples, widths.front()}, false}},
          .layers = mlp_layers(widths, options)};
}

}  // namespace millrace
