#include "training/watch/inspection.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <sstream>
#include <string_view>

#include "millrace/core/error.hpp"
#include "training/named_settings.hpp"

namespace millrace {
namespace {

constexpr bool is_digit(char letter) {
  return letter >= '0' && letter <= '9';
}

/// The name up to its first part that is a number, else all of it.
std::string layer_of(const std::string& name) {
  for (std::size_t begin = 0; begin < name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    if (end > begin && std::all_of(name.begin() + static_cast<std::ptrdiff_t>(begin),
                                   name.begin() + static_cast<std::ptrdiff_t>(end),
                                   is_digit))
      return name.substr(0, end);
    begin = end + 1;
  }
  return name;
}

/// Numbers in names count: "layers.2" comes before "layers.10".
struct ByNumbers {
  bool operator()(const std::string& a, const std::string& b) const {
    std::size_t i = 0, j = 0;
    while (i < a.size() && j < b.size()) {
      if (is_digit(a[i]) && is_digit(b[j])) {
        const std::string left = digits(a, i), right = digits(b, j);
        if (left.size() != right.size()) return left.size() < right.size();
        if (left != right) return left < right;
      } else {
        if (a[i] != b[j]) return a[i] < b[j];
        ++i, ++j;
      }
    }
    return a.size() - i < b.size() - j;
  }

 private:
  /// The number at a place, without leading zeros; the place moves behind it.
  static std::string digits(const std::string& text, std::size_t& at) {
    std::string number;
    for (; at < text.size() && is_digit(text[at]); ++at)
      if (!number.empty() || text[at] != '0') number += text[at];
    return number;
  }
};

/// Sums of a layer; squares instead of the norm.
using Layers = std::map<std::string, LayerGradients, ByNumbers>;

LayerGradients& layer_in(Layers& layers, const std::string& name) {
  const auto [at, is_new] = layers.try_emplace(name);
  if (is_new) {
    at->second.layer = name;
    at->second.frozen = true;
  }
  return at->second;
}

void add(Layers& layers, const Parameter& parameter, double loss_scale) {
  LayerGradients& layer = layer_in(layers, layer_of(parameter.name));
  layer.frozen = layer.frozen && parameter.frozen;
  for (const float element : parameter.gradient.as<float>()) {
    ++layer.elements;
    if (!std::isfinite(element)) {
      ++layer.not_finite;
      continue;
    }
    const double value = std::abs(static_cast<double>(element)) / loss_scale;
    layer.zeros += value == 0 ? 1 : 0;
    layer.norm += value * value;
    layer.largest = std::max(layer.largest, value);
  }
}

/// A line for the name, one for the numbers.
std::string written(const Layers& layers) {
  std::string text;
  for (const auto& [name, layer] : layers)
    text += name + "\n" + std::to_string(layer.elements) + " " + exact_text(layer.norm) + " " +
            exact_text(layer.largest) + " " + std::to_string(layer.zeros) + " " +
            std::to_string(layer.not_finite) + " " + (layer.frozen ? "1" : "0") + "\n";
  return text;
}

void add_written(Layers& layers, const std::string& text) {
  std::istringstream lines(text);
  std::string name, numbers;
  while (std::getline(lines, name) && std::getline(lines, numbers)) {
    std::istringstream words(numbers);
    LayerGradients more;
    words >> more.elements >> more.norm >> more.largest >> more.zeros >> more.not_finite >>
        more.frozen;
    LayerGradients& layer = layer_in(layers, name);
    layer.elements += more.elements;
    layer.norm += more.norm;
    layer.largest = std::max(layer.largest, more.largest);
    layer.zeros += more.zeros;
    layer.not_finite += more.not_finite;
    layer.frozen = layer.frozen && more.frozen;
  }
}

std::vector<LayerGradients> finished(const Layers& layers) {
  std::vector<LayerGradients> all;
  for (const auto& [name, sums] : layers) {
    all.push_back(sums);
    all.back().norm = std::sqrt(sums.norm);
  }
  return all;
}

std::string row(const LayerGradients& layer, std::size_t width) {
  char numbers[128];  // NOLINT(cppcoreguidelines-avoid-c-arrays): for snprintf
  const double elements = static_cast<double>(std::max<std::int64_t>(layer.elements, 1));
  std::snprintf(numbers,
                sizeof numbers,
                "%10lld  %9.3e  %9.3e  %6.1f %%  %10lld",
                static_cast<long long>(layer.elements),
                layer.norm,
                layer.largest,
                100 * static_cast<double>(layer.zeros) / elements,
                static_cast<long long>(layer.not_finite));
  std::string name = layer.layer;
  name.resize(std::max(width, name.size()), ' ');
  return "  " + name + numbers + (layer.frozen ? "  frozen" : "") + "\n";
}

/// What deserves a look, or nothing.
std::string remark(const LayerGradients& layer) {
  if (layer.not_finite > 0)
    return layer.layer + ": " + std::to_string(layer.not_finite) + " of " +
           std::to_string(layer.elements) + " gradients are not finite\n";
  if (layer.zeros == layer.elements && layer.elements > 0 && !layer.frozen)
    return layer.layer + ": all " + std::to_string(layer.elements) +
           " gradients are 0, so that it learns nothing\n";
  return {};
}

}  // namespace

std::vector<LayerGradients> inspect_gradients(std::span<const Parameter* const> parameters) {
  Layers layers;
  for (const Parameter* parameter : parameters) add(layers, *parameter, 1);
  return finished(layers);
}

GradientInspection inspected(const TrainingState& state, ProcessGroup& group, double loss_scale) {
  Layers mine;
  for (int rank = 0; rank < state.ranks(); ++rank)
    for (const StateEntry& entry : state.entries(Rank{rank}))
      if (entry.counts && entry.is_trained()) add(mine, *entry.parameter, loss_scale);
  Layers all;
  for (const std::string& said : group.gather(written(mine), Label::Measurement))
    add_written(all, said);
  GradientInspection inspection;
  inspection.step = state.counters().mini_batches;
  inspection.layers = finished(all);
  return inspection;
}

std::string to_string(const GradientInspection& inspection) {
  std::size_t width = 7;
  for (const LayerGradients& layer : inspection.layers)
    width = std::max(width, layer.layer.size() + 2);
  std::string head = "layer";
  head.resize(width, ' ');
  std::string text = "gradients of step " + std::to_string(inspection.step) +
                     ", before clipping\n  " + head +
                     "  elements       norm    largest     zeros  not finite\n";
  std::string remarks;
  for (const LayerGradients& layer : inspection.layers) {
    text += row(layer, width);
    remarks += remark(layer);
  }
  return text + remarks;
}

}  // namespace millrace
