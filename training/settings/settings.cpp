// How the table of settings is read.
#include "millrace/training/settings.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "millrace/core/edit_distance.hpp"
#include "millrace/core/error.hpp"
#include "millrace/core/sentence.hpp"

namespace millrace {
namespace {

std::string names_of(const std::vector<OptimizerKind>& kinds) {
  std::vector<std::string_view> names;
  for (const OptimizerKind kind : kinds) names.push_back(name_of(kind));
  return fmt::format("{}", fmt::join(names, ", "));
}

void set(TrainerOptions& options, const Setting& row, const std::string& value) {
  const OptimizerKind kind = options.optimizer.kind;
  if (!row.belongs_to(kind))
    throw InvalidParameter(named(row.name) + " " + value + ": " + std::string(name_of(kind)) +
                           " has no such setting; those that have it are " + names_of(row.of));
  try {
    row.access.set(options, value);
  } catch (const InvalidArgument& error) {
    throw InvalidParameter(named(row.name) + " " + value + ": " + sentence_of(error));
  }
}

}  // namespace

std::string Setting::flag_name() const {
  std::string text(flag.empty() ? name : flag);
  std::ranges::replace(text, '_', '-');
  return text;
}

std::string Setting::title_text() const {
  std::string text(title.empty() ? name : title);
  std::ranges::replace(text, '_', ' ');
  return text;
}

bool Setting::belongs_to(OptimizerKind kind) const {
  return of.empty() || std::ranges::find(of, kind) != of.end();
}

std::string_view Setting::preset(OptimizerKind kind) const {
  for (const SettingPreset& preset : presets)
    if (preset.of.empty() || std::ranges::find(preset.of, kind) != preset.of.end())
      return preset.value;
  return {};
}

void apply(TrainerOptions& options, const SettingValues& values, std::span<const Setting> rows) {
  for (const auto& [name, value] : values)
    require(std::ranges::find(rows, name, &Setting::name) != rows.end(), [&] {
      const auto nearest = std::ranges::min_element(
          rows, {}, [&](const Setting& row) { return edit_distance(name, row.name); });
      return fmt::format("{}: unknown setting; did you mean {}?", name, nearest->name);
    });
  for (const Setting& row : rows)
    if (const auto given = values.find(row.name); given != values.end())
      set(options, row, given->second);
}

TrainerOptions with_loss_scale(TrainerOptions options, DType precision) {
  if (!options.loss_scale) options.loss_scale = loss_scale_for(precision);
  return options;
}

void check_settings(const TrainerOptions& options, std::span<const Setting> rows) {
  TrainerOptions scratch;
  for (const Setting& row : rows) {
    if (row.access.kind != SettingKind::Integer && row.access.kind != SettingKind::Real) continue;
    scratch.optimizer.kind = row.of.empty() ? OptimizerKind::AdamW : row.of.front();
    set(scratch, row, row.access.get(options));
  }
}

std::vector<std::pair<std::string, std::string>> agreed_settings(const TrainerOptions& options,
                                                                 std::span<const Setting> rows) {
  std::vector<std::pair<std::string, std::string>> agreed;
  for (const Setting& row : rows) {
    if (!row.is_in(kAgreed)) continue;
    std::string value = row.access.get(options);
    agreed.emplace_back(row.title_text(), value.empty() ? "none" : std::move(value));
  }
  return agreed;
}

std::map<std::string, std::string> saved_settings(const TrainerOptions& options,
                                                  std::span<const Setting> rows) {
  std::map<std::string, std::string> saved;
  for (const Setting& row : rows)
    if (!row.saved.empty()) saved.emplace(row.saved, row.access.get(options));
  return saved;
}

}  // namespace millrace
