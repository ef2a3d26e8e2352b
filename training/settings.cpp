// How the table of settings is read.
#include "millrace/training/settings.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/edit_distance.hpp"
#include "millrace/core/error.hpp"

namespace millrace {
namespace {

bool has(const std::vector<OptimizerKind>& kinds, OptimizerKind kind) {
  return kinds.empty() || std::ranges::find(kinds, kind) != kinds.end();
}

std::string replaced(std::string_view text, char from, char to) {
  std::string result(text);
  std::ranges::replace(result, from, to);
  return result;
}

/// Runs `set` with a message that begins with name and value.
template <class Set>
void about(const Setting& row, const std::string& value, Set set) {
  try {
    set();
  } catch (const InvalidArgument& error) {
    throw InvalidParameter(named(row.name) + " " + value + ": " + parameter_text(error));
  }
}

void require_owned(const Setting& row, OptimizerKind kind) {
  std::vector<std::string_view> owners;
  for (const OptimizerKind owner : row.of) owners.push_back(name_of(owner));
  require(row.belongs_to(kind),
          fmt::format("{} has no such setting; those that have it are {}",
                      name_of(kind),
                      fmt::join(owners, ", ")));
}

}  // namespace

std::string Setting::flag_name() const {
  return replaced(flag.empty() ? name : flag, '_', '-');
}

std::string Setting::title_text() const {
  return replaced(title.empty() ? name : title, '_', ' ');
}

bool Setting::belongs_to(OptimizerKind kind) const {
  return has(of, kind);
}

std::string_view Setting::preset(OptimizerKind kind) const {
  if (!belongs_to(kind)) return {};
  const auto found = std::ranges::find_if(
      presets, [&](const SettingPreset& preset) { return has(preset.of, kind); });
  return found == presets.end() ? std::string_view() : found->value;
}

void apply_settings(TrainerOptions& options,
                    const SettingValues& values,
                    std::span<const Setting> rows) {
  for (const auto& [name, value] : values)
    if (std::ranges::find(rows, name, &Setting::name) == rows.end())
      throw InvalidArgument(fmt::format("{}: unknown setting; did you mean {}?",
                                        name,
                                        std::ranges::min_element(rows, {}, [&](const Setting& row) {
                                          return edit_distance(name, row.name);
                                        })->name));
  for (const Setting& row : rows) {
    const auto given = values.find(row.name);
    if (given == values.end()) continue;
    about(row, given->second, [&] {
      row.value.set(options, given->second);
      require_owned(row, options.step.optimizer.kind);
    });
  }
}

SettingValues with_presets(SettingValues values, std::span<const Setting> rows) {
  TrainerOptions chosen;
  for (const Setting& row : rows) {
    const std::string_view preset = row.preset(chosen.step.optimizer.kind);
    if (!preset.empty()) values.try_emplace(std::string(row.name), preset);
    const auto value = values.find(row.name);
    if (row.name == "optimizer" && value != values.end())
      about(row, value->second, [&] { row.value.set(chosen, value->second); });
  }
  return values;
}

std::string keyword_help(std::span<const Setting> rows) {
  std::string text;
  for (const Setting& row : rows)
    if (row.is_in(kInKeywords)) text += fmt::format("{}: {}\n", row.name, row.help);
  return text;
}

TrainerOptions with_loss_scale(TrainerOptions options, DType precision) {
  if (!options.step.loss_scale) options.step.loss_scale = loss_scale_for(precision);
  return options;
}

void check_settings(const TrainerOptions& options, std::span<const Setting> rows) {
  TrainerOptions scratch;
  for (const Setting& row : rows) {
    if (row.value.kind != SettingKind::Integer && row.value.kind != SettingKind::Real) continue;
    const std::string value = row.value.get(options);
    about(row, value, [&] { row.value.set(scratch, value); });
  }
}

std::vector<std::pair<std::string, std::string>> agreed_settings(const TrainerOptions& options,
                                                                 std::span<const Setting> rows) {
  std::vector<std::pair<std::string, std::string>> agreed;
  for (const Setting& row : rows) {
    if (!row.is_in(kAgreed)) continue;
    std::string value = row.value.get(options);
    agreed.emplace_back(row.title_text(), value.empty() ? "none" : std::move(value));
  }
  return agreed;
}

std::map<std::string, std::string> saved_settings(const TrainerOptions& options,
                                                  std::span<const Setting> rows) {
  std::map<std::string, std::string> saved;
  for (const Setting& row : rows)
    if (!row.saved.empty()) saved.emplace(row.saved, row.value.get(options));
  return saved;
}

SettingValues settings_in(const std::map<std::string, std::string>& manifest,
                          OptimizerKind optimizer,
                          std::span<const Setting> rows) {
  SettingValues values;
  for (const Setting& row : rows) {
    const auto saved = manifest.find(std::string(row.saved));
    if (saved != manifest.end() && row.belongs_to(optimizer))
      values.emplace(row.name, saved->second);
  }
  return values;
}

}  // namespace millrace
