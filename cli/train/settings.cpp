#include "cli/train/settings.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sstream>

#include <nlohmann/json.hpp>

#include "cli/files.hpp"
#include "cli/usage.hpp"
#include "millrace/core/error.hpp"

namespace millrace::cli {

namespace {

using nlohmann::ordered_json;

/// "3e-3 for adam and adamw, 3e-4 for lion, else 1e-2".
std::string preset_text(const std::vector<SettingPreset>& presets) {
  std::vector<std::string> texts;
  for (const auto& [value, of] : presets) {
    std::vector<std::string_view> names;
    for (const OptimizerKind kind : of) names.push_back(name_of(kind));
    texts.push_back(of.empty() ? fmt::format("else {}", value)
                               : fmt::format("{} for {}", value, fmt::join(names, " and ")));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

/// The kind of values that the parser checks; see check_values.
const char* type_name(SettingKind kind, bool may_be_none) {
  if (kind == SettingKind::Integer) return "INT";
  return kind == SettingKind::Real && !may_be_none ? "FLOAT" : "TEXT";
}

void add_flag(CLI::App& subcommand, const Setting& row) {
  const std::string name = "--" + row.flag_name();
  const bool depends = row.presets.size() > 1;
  const std::string help =
      depends ? fmt::format("{} ({})", row.help, preset_text(row.presets)) : std::string(row.help);
  if (!row.bare.empty()) {
    subcommand.add_flag(row.bare == "true" ? name : fmt::format("{}{{{}}}", name, row.bare), help);
    return;
  }
  CLI::Option* option =
      subcommand.add_option(name, CLI::callback_t([](const auto&) { return true; }), help);
  const bool may_be_none = !row.presets.empty() && row.presets.back().value == "none";
  option->type_name(type_name(row.value.kind, may_be_none));
  if (row.value.kind == SettingKind::List)
    option->expected(1, CLI::detail::expected_max_vector_size);
  if (row.presets.size() == 1) option->default_str(std::string(row.presets.front().value));
}

std::vector<CLI::ConfigItem> items_of(const std::string& file) {
  std::istringstream stream(read_file("--config", file, kConfigLimit));
  try {
    return CLI::ConfigTOML().from_config(stream);
  } catch (const CLI::Error& error) {
    throw InvalidArgument(fmt::format("--config {}: {}", file, error.what()));
  }
}

ordered_json json_of(const Setting& row, const std::string& text) {
  switch (row.value.kind) {
    case SettingKind::Integer:
      return ordered_json::parse(text);
    case SettingKind::Real:
      return text == "none" ? ordered_json() : ordered_json(std::stod(text));
    case SettingKind::Switch:
      return text == "true";
    case SettingKind::List: {
      ordered_json list = ordered_json::array();
      std::istringstream words(text);
      for (std::string word; words >> word;) list.push_back(word);
      return list;
    }
    case SettingKind::Text:
      break;
  }
  return text;
}

}  // namespace

void add_setting_flags(CLI::App& subcommand, std::span<const Setting> rows) {
  for (const Setting& row : rows)
    if (row.is_in(kInFlags)) add_flag(subcommand, row);
}

SettingValues given_settings(const CLI::App& subcommand, std::span<const Setting> rows) {
  SettingValues values;
  for (const Setting& row : rows) {
    if (!row.is_in(kInFlags)) continue;
    const CLI::Option& option = *subcommand.get_option("--" + row.flag_name());
    if (option.count() == 0) continue;
    const bool is_list = row.value.kind == SettingKind::List;
    values.emplace(
        row.name,
        is_list ? fmt::format("{}", fmt::join(option.results(), " ")) : option.results().back());
  }
  return values;
}

void set_option(CLI::Option& option, const std::vector<std::string>& values) {
  if (option.count() > 0) return;
  if (option.get_items_expected_max() > 1)
    for (const std::string& value : values) option.add_result(value);
  else
    option.add_result(fmt::format("{}", fmt::join(values, ",")));
  option.run_callback();
}

void read_config(CLI::App& subcommand, const std::string& file) {
  for (const CLI::ConfigItem& item : items_of(file)) {
    if (item.name == "++" || item.name == "--") continue;  // begin and end of a section
    const bool in_place = item.parents.empty() ||
                          (item.parents.size() == 1 && item.parents[0] == subcommand.get_name());
    CLI::Option* option = subcommand.get_option_no_throw("--" + item.name);
    require(in_place && option != nullptr && item.name != "config" && item.name != "help",
            fmt::format("--config {}: {}: not an option of {}{}",
                        file,
                        item.fullname(),
                        subcommand.get_name(),
                        suggested_option("--" + item.name, subcommand)));
    try {
      set_option(*option, item.inputs);
    } catch (const CLI::Error& error) {
      throw InvalidArgument(fmt::format("--config {}: {}", file, error.what()));
    }
  }
}

ordered_json settings_json(const TrainerOptions& options, std::span<const Setting> rows) {
  ordered_json report;
  for (const Setting& row : rows) {
    if (!row.is_in(kReported) || !row.belongs_to(options.step.optimizer.kind)) continue;
    std::string key = row.flag_name();
    std::ranges::replace(key, '-', '_');
    report[key] = json_of(row, row.value.get(options));
  }
  return report;
}

}  // namespace millrace::cli
