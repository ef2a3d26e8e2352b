// What depends on the run and not on the state: run.json, beside every manifest.
#pragma once

#include <map>
#include <string>

#include "millrace/scheduler/plan/program.hpp"
#include "millrace/training/checkpoint.hpp"

namespace millrace {

/// What of this machine and program decides bits.
[[nodiscard]] std::map<std::string, std::string> machine_facts();

/// JSON: the machine's facts, plan and processes, and `more`.
[[nodiscard]] std::string write_run(const Program& program,
                                    int processes,
                                    const std::map<std::string, std::string>& more);

/// The facts in a checkpoint's run.json. Throws DataError when it is missing or damaged.
[[nodiscard]] std::map<std::string, std::string> read_run(const std::string& folder,
                                                          FileSystem& files);

}  // namespace millrace
