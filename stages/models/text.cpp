// Models by their text: which kind it is, and what the kinds read alike.
#include "stages/models/text.hpp"

#include <algorithm>
#include <array>

#include "core/edit_distance.hpp"
#include "millrace/core/error.hpp"

namespace millrace {
void ModelText::refuse(const std::string& why) const {
  throw InvalidArgument("model \"" + std::string(whole) + "\": " + why + "; the form is " + form);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

std::int64_t read_width(const ModelText& text, std::string_view width) {
  constexpr std::int64_t kWidest = 1 << 24;
  std::int64_t number = 0;
  if (!read_number(width, number) || number < 1 || number > kWidest)
    text.refuse("width \"" + std::string(width) + "\" is not a number from 1 to 16777216");
  return number;
}

std::optional<Activation> read_activation(std::string_view option) {
  for (const Activation activation : {Activation::Relu, Activation::Gelu, Activation::Tanh})
    if (option == name_of(activation)) return activation;
  return std::nullopt;
}

std::optional<double> read_dropout(const ModelText& text, std::string_view option) {
  constexpr std::string_view kDropout = "dropout=";
  if (!option.starts_with(kDropout)) return std::nullopt;
  const std::string_view word = option.substr(kDropout.size());
  double rate = 0;
  if (!read_number(word, rate) || !(rate >= 0 && rate < 1))
    text.refuse("dropout \"" + std::string(word) + "\" is not a rate from 0 to below 1");
  return rate;
}

namespace {

struct Kind {
  std::string_view name;
  const char* form;
  ModelSpec (*read)(const ModelText&, std::span<const std::string_view>);
};

constexpr std::array kKinds{Kind{"mlp", kMlpForm, read_mlp},
                            Kind{"conv", kConvForm, read_conv},
                            Kind{"gpt", kGptForm, read_gpt}};

}  // namespace

ModelSpec parse_model(std::string_view text) {
  const std::string_view name = text.substr(0, text.find(':'));
  const auto kind = std::ranges::find(kKinds, name, &Kind::name);
  if (kind == kKinds.end() || name.size() == text.size()) {
    const auto nearest = std::ranges::min_element(
        kKinds, {}, [&](const Kind& known) { return edit_distance(name, known.name); });
    ModelText{text, nearest->form}.refuse("unknown kind of model; known are mlp, conv, gpt");
  }
  const auto parts = split(text.substr(name.size() + 1), ',');
  ModelSpec model = kind->read({text, kind->form}, parts);
  model.text = std::string(text);
  return model;
}

}  // namespace millrace
