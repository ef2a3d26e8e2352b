// Who am I? Engines that start processes say it in environment variables. A pure function over a
// map: the command reads the environment, the library does not.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "millrace/core/ids.hpp"

namespace millrace {

using Variables = std::map<std::string, std::string>;

/// What is known about this process's place; parts that nobody said are empty.
struct Identity {
  std::optional<int> rank = {};
  std::optional<int> world = {};
  std::string rendezvous = {};    ///< "tcp://host:port"
  std::string source = {};        ///< what said the rank, for reports
  std::string world_source = {};  ///< the same of the world
};

/// What was said explicitly counts before all variables. The variables are those of millrace
/// (MILLRACE_RANK, MILLRACE_WORLD, MILLRACE_RENDEZVOUS), Open MPI, MPICH, SLURM, torchrun and
/// Kubernetes indexed jobs (which tell no world). Of launchers inside each other the innermost
/// counts: torchrun (RANK with TORCHELASTIC_RUN_ID or LOCAL_RANK) before mpirun, and both before
/// the step of srun or the pod around them. What SLURM says counts inside a step of srun alone
/// (SLURM_STEP_ID): a batch script is told a rank as well.
///
/// Throws Mismatch when two sources that count disagree about rank or world, with both sources and
/// the way out; InvalidArgument when a variable is no number or the rank is outside the world.
[[nodiscard]] Identity find_identity(const Identity& explicitly, const Variables& variables);

/// Whether mpirun of some MPI started this process, and not torchrun inside it. An engine that
/// speaks as MPICH's does (srun) is none.
[[nodiscard]] bool started_by_mpirun(const Variables& variables);

/// The variables in which engines say a rank or a number of ranks.
[[nodiscard]] std::vector<std::string> identity_variables();

}  // namespace millrace
