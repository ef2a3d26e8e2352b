// The subcommands of the millrace command, one file each. A subcommand registers itself with the
// application and runs in its callback; what goes wrong is thrown and becomes one sentence and an
// exit code in main.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace millrace::cli {

/// Thrown by a subcommand whose work is done and printed, to end with another exit code than 0.
struct ExitCode {
  int code = 1;
};

void add_list(CLI::App& app);
void add_train(CLI::App& app);
void add_checkpoint(CLI::App& app);
void add_generate(CLI::App& app);
void add_show(CLI::App& app);
void add_verify(CLI::App& app);
void add_simulate(CLI::App& app);
void add_compare(CLI::App& app);
void add_sweep(CLI::App& app);
void add_search(CLI::App& app);
void add_import(CLI::App& app);
void add_split(CLI::App& app);
/// `words` are those that the command was given: a program's must reach it as they were typed.
void add_launch(CLI::App& app, const std::vector<std::string>& words);
void add_worker(CLI::App& app);
/// Where an engine has started several processes, `words` (train and its options) are what each
/// does as one rank. False, and nothing is done, in a process that is alone.
[[nodiscard]] bool train_as_rank(const std::vector<std::string>& words);
void add_keys(CLI::App& app);
void add_doctor(CLI::App& app);

}  // namespace millrace::cli
