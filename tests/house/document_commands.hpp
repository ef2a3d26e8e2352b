// Whether the subcommands and options that a document names exist.
#pragma once

#include <set>
#include <string>

namespace documents {

/// The subcommands of --help.
[[nodiscard]] const std::set<std::string>& subcommands();

/// The options that --help of a subcommand ("checkpoint ls") lists.
[[nodiscard]] const std::set<std::string>& options_of(const std::string& subcommand);

/// Fault of a command line of a document: unknown subcommand, option, CMake variable or preset.
/// Empty if there is none.
[[nodiscard]] std::string faults_of(const std::string& command);

}  // namespace documents
