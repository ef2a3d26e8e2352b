// Learning rates by name and as text.
#include <algorithm>
#include <array>
#include <string>

#include "millrace/core/error.hpp"
#include "millrace/training/learning_rate.hpp"
#include "training/named_settings.hpp"

namespace millrace {
namespace {

struct KindEntry {
  LearningRateKind kind;
  std::string_view name;
  std::array<std::string_view, 3> settings = {};  // those that it has, from the left

  [[nodiscard]] std::span<const std::string_view> known() const {
    const auto end = std::ranges::find(settings, std::string_view());
    return {settings.begin(), end};
  }

  [[nodiscard]] bool has(std::string_view setting) const {
    return std::ranges::find(settings, setting) != settings.end();
  }
};

constexpr std::array<KindEntry, 6> kKinds = {
    {{LearningRateKind::Constant, "constant"},
     {LearningRateKind::Linear, "linear", {"floor"}},
     {LearningRateKind::Cosine, "cosine", {"floor"}},
     {LearningRateKind::Step, "step", {"every", "factor", "floor"}},
     {LearningRateKind::InverseSquareRoot, "inverse-sqrt", {"floor"}},
     {LearningRateKind::WarmUpStableDecay, "wsd", {"decay", "floor"}}}};

constexpr std::array<std::string_view, 2> kScalings = {"linear", "sqrt"};

const KindEntry& entry_of(LearningRateKind kind) {
  return *std::ranges::find(kKinds, kind, &KindEntry::kind);
}

}  // namespace

std::string_view name_of(LearningRateKind kind) {
  return entry_of(kind).name;
}

LearningRateKind learning_rate_kind(std::string_view name) {
  const auto found = std::ranges::find(kKinds, name, &KindEntry::name);
  if (found != kKinds.end()) return found->kind;
  std::string known;
  for (const KindEntry& entry : kKinds)
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  throw InvalidArgument("unknown learning-rate schedule '" + std::string(name) + "'; known are " +
                        known);
}

LearningRate parse_learning_rate(std::string_view text) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  LearningRate rate;
  rate.kind = learning_rate_kind(text.substr(0, colon));
  if (colon == text.size()) return rate;
  const NamedSettings settings(text.substr(colon + 1), entry_of(rate.kind).known());
  rate.floor = settings.number("floor").value_or(rate.floor);
  rate.every = settings.count("every").value_or(rate.every);
  rate.factor = settings.number("factor").value_or(rate.factor);
  rate.decay = settings.count("decay").value_or(rate.decay);
  rate.check();
  return rate;
}

std::string to_string(const LearningRate& rate) {
  if (rate.function) return "one of its own";
  const KindEntry& entry = entry_of(rate.kind);
  const LearningRate usual;
  std::string settings;
  const auto add = [&](const char* name, const std::string& value, bool differs) {
    if (differs && entry.has(name))
      settings += (settings.empty() ? ":" : ",") + std::string(name) + "=" + value;
  };
  add("every", std::to_string(rate.every), rate.every != usual.every);
  add("factor", exact_text(rate.factor), rate.factor != usual.factor);
  add("decay", std::to_string(rate.decay), rate.decay != usual.decay);
  add("floor", exact_text(rate.floor), rate.floor != usual.floor);
  return std::string(entry.name) + settings;
}

std::string_view name_of(BatchScaling scaling) {
  return kScalings[static_cast<std::size_t>(scaling)];
}

BatchScaling batch_scaling(std::string_view name) {
  for (const BatchScaling scaling : {BatchScaling::Linear, BatchScaling::SquareRoot})
    if (name_of(scaling) == name) return scaling;
  throw InvalidArgument("unknown scaling with the mini-batch '" + std::string(name) +
                        "'; known are " + listed(kScalings));
}

}  // namespace millrace
