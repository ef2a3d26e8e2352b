// What a step of srun sets for its tasks, which have no rendezvous of their own: enough to agree on
// one. Pure functions over variables.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "millrace/transport/launch.hpp"

namespace millrace {

/// A step of srun. Thread-safety: immutable, share freely.
struct SlurmStep {
  std::uint64_t job = 0;  ///< another one for every run of every step
  std::string first_node;
  int port = 0;  ///< of the job's own; the next ones may be tried
  std::string
      folder;  ///< of this step alone, in the folder from which the job was submitted; not made yet
};

/// Whether a process is a task of srun. A batch script has the variables of task 0, too.
[[nodiscard]] bool in_slurm_step(const Variables& variables);

/// Nothing in a process that is not a task of srun, or has too few variables.
[[nodiscard]] std::optional<SlurmStep> slurm_step(const Variables& variables);

/// The first of a list of nodes: "n1" of "n[1-2,7]", "rack1n08" of "rack[1-2]n[08-11],login".
[[nodiscard]] std::string first_node(const std::string& list);

}  // namespace millrace
