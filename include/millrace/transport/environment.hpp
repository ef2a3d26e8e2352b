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
  std::string rendezvous = {};  ///< "tcp://host:port"
  std::string source = {};      ///< who said the rank, for reports
};

/// Joins what was said explicitly with the variables of, in this order, millrace (MILLRACE_RANK,
/// MILLRACE_WORLD, MILLRACE_RENDEZVOUS), Open MPI, MPICH, SLURM, torchrun and Kubernetes indexed
/// jobs (which tell no world). What SLURM says counts inside a step of srun alone (SLURM_STEP_ID):
/// a batch script, in which another engine may start the ranks, is told a rank as well.
///
/// Throws Mismatch when two sources disagree about rank or world (an engine inside another engine
/// is a mistake that training would hide), InvalidArgument when a variable is no number or the rank
/// is outside the world.
[[nodiscard]] Identity find_identity(const Identity& explicitly, const Variables& variables);

/// Whether mpirun of some MPI started this process. An engine that speaks as MPICH's does (srun) is
/// none.
[[nodiscard]] bool started_by_mpirun(const Variables& variables);

/// The variables in which engines say a rank or a number of ranks.
[[nodiscard]] std::vector<std::string> identity_variables();

}  // namespace millrace
