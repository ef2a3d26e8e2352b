// One row per launcher. Of launchers inside each other the innermost counts; all others that set a
// rank must agree.
#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <string_view>

#include "millrace/core/error.hpp"
#include "millrace/transport/launch.hpp"
#include "transport/slurm.hpp"

namespace millrace {

namespace {

/// Which launcher started which: one inside another has the greater one.
enum class Inside : std::uint8_t {
  Cluster,  // starts tasks and pods, in which the others may run
  Mpi,
  Torchrun,
  None  // set by a person or a manifest: always valid
};

struct Launcher {
  const char* rank;
  const char* world;  // empty: this launcher sets none
  Inside inside;
};

constexpr std::array kLaunchers = {
    Launcher{"MILLRACE_RANK", "MILLRACE_WORLD", Inside::None},
    Launcher{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", Inside::Mpi},
    Launcher{"PMI_RANK", "PMI_SIZE", Inside::Mpi},
    Launcher{"SLURM_PROCID", "SLURM_NTASKS", Inside::Cluster},
    Launcher{"RANK", "WORLD_SIZE", Inside::Torchrun},
    Launcher{"JOB_COMPLETION_INDEX", "", Inside::Cluster},
};

/// RANK alone may be of any shell. torchrun says more.
bool is_torchrun(const Variables& variables) {
  return variables.contains("RANK") &&
         (variables.contains("TORCHELASTIC_RUN_ID") || variables.contains("LOCAL_RANK"));
}

/// Nothing where the launcher says nothing about this process.
std::optional<Inside> place_of(const Launcher& launcher, const Variables& variables) {
  const std::string_view rank = launcher.rank;
  if (!variables.contains(launcher.rank) && !variables.contains(launcher.world))
    return std::nullopt;
  if (rank == "SLURM_PROCID" && !in_slurm_step(variables)) return std::nullopt;
  if (rank == "RANK" && !is_torchrun(variables)) return Inside::None;
  return launcher.inside;
}

/// Those that count, in the order of the table.
std::vector<Launcher> innermost(const Variables& variables) {
  Inside deepest = Inside::Cluster;
  for (const Launcher& launcher : kLaunchers)
    if (const auto inside = place_of(launcher, variables); inside && *inside != Inside::None)
      deepest = std::max(deepest, *inside);
  std::vector<Launcher> found;
  for (const Launcher& launcher : kLaunchers)
    if (const auto inside = place_of(launcher, variables); inside && *inside >= deepest)
      found.push_back(launcher);
  return found;
}

std::string value_of(const Variables& variables, const std::string& name) {
  const auto found = variables.find(name);
  return found == variables.end() ? std::string() : found->second;
}

std::optional<int> number_of(const Variables& variables, const std::string& name) {
  const std::string text = value_of(variables, name);
  if (text.empty()) return std::nullopt;
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  require(error == std::errc() && end == text.data() + text.size() && number >= 0,
          name + " is '" + text + "', not a count");
  return number;
}

/// A number of this process, and what says it.
struct Said {
  std::optional<int> number;
  std::string source;
};

/// What was typed counts alone; all variables must agree.
void agree(Said& known,
           bool typed,
           const Variables& variables,
           const std::string& name,
           const char* what) {
  if (typed || name.empty()) return;
  const auto said = number_of(variables, name);
  if (!said) return;
  if (!known.number) known = {said, name};
  if (*known.number == *said) return;
  const std::string setting = name + "=" + std::to_string(*said);
  throw Mismatch(std::string(what) + " is " + std::to_string(*known.number) + " by " +
                 known.source + ", but " + std::to_string(*said) + " by " + name + "; " + setting +
                 " is set in this shell: unset the one of the two that does not belong to this "
                 "job, or type " +
                 what + " for millrace worker");
}

}  // namespace

bool started_by_mpirun(const Variables& variables) {
  if (is_torchrun(variables)) return false;  // mpirun started that
  return variables.contains("OMPI_COMM_WORLD_SIZE") ||
         (variables.contains("PMI_SIZE") && !variables.contains("SLURM_STEP_ID"));
}

std::vector<std::string> identity_variables() {
  std::vector<std::string> names;
  for (const Launcher& launcher : kLaunchers)
    for (const char* name : {launcher.rank, launcher.world})
      if (*name != '\0') names.emplace_back(name);
  return names;
}

Identity find_identity(const Identity& explicitly, const Variables& variables) {
  Identity identity = explicitly;
  Said rank{identity.rank, "the command line"};
  Said world{identity.world, "the command line"};
  for (const Launcher& launcher : innermost(variables)) {
    agree(rank, explicitly.rank.has_value(), variables, launcher.rank, "the rank");
    agree(world, explicitly.world.has_value(), variables, launcher.world, "the number of ranks");
  }
  identity.rank = rank.number;
  identity.world = world.number;
  identity.source = rank.number ? rank.source : "";
  identity.world_source = world.number ? world.source : "";
  require(!rank.number || !world.number || *rank.number < *world.number, [&] {
    return "rank " + std::to_string(*rank.number) + " by " + rank.source +
           " is outside a world of " + std::to_string(*world.number) + " by " + world.source;
  });
  if (identity.rendezvous.empty()) identity.rendezvous = value_of(variables, "MILLRACE_RENDEZVOUS");
  const std::string host = value_of(variables, "MASTER_ADDR");
  const std::string port = value_of(variables, "MASTER_PORT");
  if (identity.rendezvous.empty() && !host.empty() && !port.empty())
    identity.rendezvous = "tcp://" + host + ":" + port;
  return identity;
}

}  // namespace millrace
