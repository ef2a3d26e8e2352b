// Parameter groups as text.
#include <array>
#include <cmath>

#include "millrace/core/error.hpp"
#include "millrace/training/optimizer.hpp"
#include "training/name_pattern.hpp"
#include "training/named_settings.hpp"

namespace millrace {
namespace {

constexpr std::string_view kRate = "lr";
constexpr std::string_view kDecay = "weight-decay";
constexpr std::string_view kFrozen = "frozen";

constexpr std::array<std::string_view, 3> kSettings = {kRate, kDecay, kFrozen};

void require_at_least_zero(std::string_view name, const std::optional<double>& value) {
  require(!value || (*value >= 0 && std::isfinite(*value)), [&] {
    return std::string(name) + " must be at least 0 and finite, got " + exact_text(*value);
  });
}

}  // namespace

void check(const ParameterGroup& group) {
  require_at_least_zero(kRate, group.learning_rate_factor);
  require_at_least_zero(kDecay, group.weight_decay);
}

ParameterGroup parse_parameter_group(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  require(colon != std::string_view::npos && colon > 0, [&] {
    return "expected names and their settings, as in layers.0.*:lr=0.1,weight-decay=0,frozen, "
           "found '" +
           std::string(text) + "'";
  });
  const NamedSettings settings(text.substr(colon + 1), kSettings);
  ParameterGroup group;
  group.pattern = text.substr(0, colon);
  group.learning_rate_factor = settings.number(kRate);
  group.weight_decay = settings.number(kDecay);
  group.frozen = settings.choice(kFrozen);
  check(group);
  return group;
}

std::string to_string(const ParameterGroup& group) {
  std::string settings;
  const auto add = [&](std::string_view name, const std::string& value) {
    settings += (settings.empty() ? "" : ",") + std::string(name) + "=" + value;
  };
  if (group.learning_rate_factor) add(kRate, exact_text(*group.learning_rate_factor));
  if (group.weight_decay) add(kDecay, exact_text(*group.weight_decay));
  if (group.frozen) add(kFrozen, *group.frozen ? "yes" : "no");
  return group.pattern + ":" + settings;
}

void check_names(const ParameterGroup& group, std::span<const std::string> names) {
  static_cast<void>(matching(group.pattern, names));
}

}  // namespace millrace
