// The processes of a job on this machine, from start to end.
#pragma once

#include <string>
#include <vector>

#include "cli/ranks/link_flags.hpp"

namespace millrace::cli {

struct LaunchFlags {
  int processes = 4;
  std::string log_directory = {};  ///< empty: logs go with the job
  double grace = 5;                ///< seconds
  bool bind_cores = false;
  LinkFlags link = {.link = "auto"};
  std::vector<std::string> command = {};  ///< what every process does: train or doctor, and options
};

/// Starts the ranks, passes signals on, waits for all. Returns the exit code of the failure that
/// caused the others, or 0. Throws InvalidArgument on flags that make no sense, Error when the
/// system refuses. The process must have one thread and no network context yet.
[[nodiscard]] int launch(const LaunchFlags& flags);

}  // namespace millrace::cli
