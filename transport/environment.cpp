// One row per engine; the first row that speaks is used, all others must agree.
#include "millrace/transport/environment.hpp"

#include <array>
#include <charconv>

#include "millrace/core/error.hpp"
#include "transport/slurm.hpp"

namespace millrace {

namespace {

struct Engine {
  const char* name;
  const char* rank;
  const char* world;      // empty: this engine does not tell
  bool in_steps = false;  // else what it says is not of this process
};

constexpr std::array kEngines = {
    Engine{"millrace", "MILLRACE_RANK", "MILLRACE_WORLD"},
    Engine{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    Engine{"MPICH", "PMI_RANK", "PMI_SIZE"},
    Engine{"SLURM", "SLURM_PROCID", "SLURM_NTASKS", true},
    Engine{"torchrun", "RANK", "WORLD_SIZE"},
    Engine{"Kubernetes", "JOB_COMPLETION_INDEX", ""},
};

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
          name + " is '" + text + "', which is no count");
  return number;
}

void agree(std::optional<int>& known,
           std::string& source,
           std::optional<int> said,
           const std::string& name,
           const char* what) {
  if (!said) return;
  if (known && *known != *said)
    throw Mismatch(std::string(what) + " is " + std::to_string(*known) + " by " + source +
                   ", but " + std::to_string(*said) + " by " + name);
  if (!known) source = name;
  known = said;
}

}  // namespace

bool started_by_mpirun(const Variables& variables) {
  return variables.contains("OMPI_COMM_WORLD_SIZE") ||
         (variables.contains("PMI_SIZE") && !variables.contains("SLURM_STEP_ID"));
}

std::vector<std::string> identity_variables() {
  std::vector<std::string> names;
  for (const Engine& engine : kEngines)
    for (const char* name : {engine.rank, engine.world})
      if (*name != '\0') names.emplace_back(name);
  return names;
}

Identity find_identity(const Identity& explicitly, const Variables& variables) {
  Identity identity = explicitly;
  std::string rank_source = identity.rank ? "the command line" : "";
  std::string world_source = identity.world ? "the command line" : "";
  for (const Engine& engine : kEngines) {
    if (engine.in_steps && !in_slurm_step(variables)) continue;
    const auto rank = number_of(variables, engine.rank);
    agree(identity.rank, rank_source, rank, engine.rank, "the rank");
    if (*engine.world == '\0') continue;
    agree(identity.world,
          world_source,
          number_of(variables, engine.world),
          engine.world,
          "the number of ranks");
  }
  identity.source = rank_source;
  require(!identity.rank || !identity.world || *identity.rank < *identity.world,
          "rank " + std::to_string(identity.rank.value_or(0)) + " is outside a world of " +
              std::to_string(identity.world.value_or(0)));
  if (identity.rendezvous.empty()) identity.rendezvous = value_of(variables, "MILLRACE_RENDEZVOUS");
  const std::string host = value_of(variables, "MASTER_ADDR");
  const std::string port = value_of(variables, "MASTER_PORT");
  if (identity.rendezvous.empty() && !host.empty() && !port.empty())
    identity.rendezvous = "tcp://" + host + ":" + port;
  return identity;
}

}  // namespace millrace
