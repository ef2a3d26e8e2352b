// The table of settings as flags of `train` and in its report.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>

#include "millrace/training/settings.hpp"

namespace millrace::cli {

/// A flag for each row that has one.
void add_setting_flags(CLI::App& subcommand, std::span<const Setting> rows = settings());

/// The settings that the command line, a configuration file or a checkpoint sets.
[[nodiscard]] SettingValues given_settings(const CLI::App& subcommand,
                                           std::span<const Setting> rows = settings());

/// Puts what the file says into every option that the command line does not set. Keys are the long
/// names without dashes, in TOML or INI form. Throws InvalidArgument.
void read_config(CLI::App& subcommand, const std::string& file);

/// Sets an option, such as "--lr", that is not set; of a list to all values, else to the values
/// with commas between them.
void set_option(CLI::Option& option, const std::vector<std::string>& values);

/// The settings of a report, by the names of their flags with underscores.
[[nodiscard]] nlohmann::ordered_json settings_json(const TrainerOptions& options,
                                                   std::span<const Setting> rows = settings());

}  // namespace millrace::cli
