// Layers made by name, with messages for unknown names and settings.
#include "stages/layers/kinds.hpp"

#include <algorithm>

#include "core/edit_distance.hpp"
#include "millrace/core/error.hpp"

namespace millrace {
namespace {

[[noreturn]] void refuse(const std::string& name, const char* wanted) {
  throw InvalidArgument("the setting '" + name + "' must be " + wanted);
}

/// "; the nearest of linear, add is 'add'".
std::string nearest_of(const std::string& given, const std::vector<std::string>& known) {
  if (known.empty()) return "; it has none";
  std::string all;
  for (const std::string& name : known) all += (all.empty() ? "" : ", ") + name;
  const auto nearest = std::ranges::min_element(
      known, {}, [&](const std::string& name) { return edit_distance(given, name); });
  return "; the nearest of " + all + " is '" + *nearest + "'";
}

const LayerKind& find(const std::vector<LayerKind>& kinds, const std::string& name) {
  const auto found = std::ranges::find(kinds, name, &LayerKind::name);
  if (found != kinds.end()) return *found;
  std::vector<std::string> names;
  for (const LayerKind& kind : kinds) names.push_back(kind.name);
  throw InvalidArgument("unknown kind of layer '" + name + "'" + nearest_of(name, names));
}

}  // namespace

const LayerSettings::Value* LayerSettings::find(const std::string& name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? nullptr : &found->second;
}

std::int64_t LayerSettings::integer(const std::string& name) const {
  if (find(name) == nullptr) refuse(name, "given: an integer");
  return integer(name, 0);
}

std::int64_t LayerSettings::integer(const std::string& name, std::int64_t otherwise) const {
  const Value* value = find(name);
  if (value == nullptr) return otherwise;
  if (const auto* integer = std::get_if<std::int64_t>(value)) return *integer;
  refuse(name, "an integer");
}

double LayerSettings::number(const std::string& name) const {
  if (find(name) == nullptr) refuse(name, "given: a number");
  return number(name, 0);
}

double LayerSettings::number(const std::string& name, double otherwise) const {
  const Value* value = find(name);
  if (value == nullptr) return otherwise;
  if (const auto* number = std::get_if<double>(value)) return *number;
  if (const auto* integer = std::get_if<std::int64_t>(value)) return static_cast<double>(*integer);
  refuse(name, "a number");
}

std::string LayerSettings::word(const std::string& name, const std::string& otherwise) const {
  const Value* value = find(name);
  if (value == nullptr) return otherwise;
  if (const auto* word = std::get_if<std::string>(value)) return *word;
  refuse(name, "a word");
}

std::vector<LayerKind> layer_kinds() {
// NOLINTNEXTLINE(cppcoreguidelines-macro-usage): reads the one list
#define MILLRACE_MAKE(kind) kind##_kind(),
  return {MILLRACE_LAYER_KINDS(MILLRACE_MAKE)};
#undef MILLRACE_MAKE
}

std::unique_ptr<Layer> build_layer(const LayerSpec& spec,
                                   std::span<const TensorType> inputs,
                                   const LayerPlace& place,
                                   std::span<const LayerKind> more) {
  std::vector<LayerKind> kinds = layer_kinds();
  kinds.insert(kinds.end(), more.begin(), more.end());
  const std::string who = "layers." + std::to_string(place.number) + " (" + spec.kind + "): ";
  try {
    const LayerKind& kind = find(kinds, spec.kind);
    for (const auto& setting : spec.settings.all())
      require(std::ranges::find(kind.settings, setting.first) != kind.settings.end(), [&] {
        return "unknown setting '" + setting.first + "'" + nearest_of(setting.first, kind.settings);
      });
    require(!inputs.empty(), "a layer takes at least one tensor");
    std::unique_ptr<Layer> layer = kind.make(spec.settings, inputs, place);
    layer->hold_in(place.precision);
    return layer;
  } catch (const InvalidArgument& error) {
    const bool named = std::string_view(error.what()).starts_with("layers.");
    throw InvalidArgument((named ? std::string() : who) + error.what());
  }
}

}  // namespace millrace
