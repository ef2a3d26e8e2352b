#include "transport/slurm.hpp"

#include <charconv>

namespace millrace {

namespace {

constexpr int kFirstPort = 20'000;
constexpr std::uint64_t kPorts = 10'000;  // below those that systems give away themselves

std::string value_in(const Variables& variables, const char* name) {
  const auto found = variables.find(name);
  return found == variables.end() ? std::string() : found->second;
}

std::optional<std::uint32_t> number_in(const Variables& variables, const char* name) {
  const std::string text = value_in(variables, name);
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

/// Only srun makes tasks, in a step with an ordinary number. Those of batch scripts and shells are
/// the sixteen largest of 32 bits.
bool in_slurm_step(const Variables& variables) {
  const auto step = number_in(variables, "SLURM_STEP_ID");
  return step && *step < 0xFFFFFFF0U;
}

std::optional<SlurmStep> slurm_step(const Variables& variables) {
  const auto job = number_in(variables, "SLURM_JOB_ID");
  const auto number = number_in(variables, "SLURM_STEP_ID");
  std::string nodes = value_in(variables, "SLURM_STEP_NODELIST");
  if (nodes.empty()) nodes = value_in(variables, "SLURM_JOB_NODELIST");
  if (!in_slurm_step(variables) || !job || nodes.empty()) return std::nullopt;
  const std::uint32_t restarts = number_in(variables, "SLURM_RESTART_COUNT").value_or(0);
  const std::string base = value_in(variables, "SLURM_SUBMIT_DIR");
  SlurmStep step;
  step.job = std::uint64_t{*job} << 32U | std::uint64_t{restarts & 0xFFFU} << 20U |
             std::uint64_t{*number & 0xFFFFFU};
  step.first_node = first_node(nodes);
  step.port = kFirstPort + static_cast<int>((std::uint64_t{*job} * 16 + *number) % kPorts);
  step.folder = (base.empty() ? std::string(".") : base) + "/.millrace-" + std::to_string(*job) +
                "-" + std::to_string(restarts) + "-" + std::to_string(*number);
  return step;
}

std::string first_node(const std::string& list) {
  std::string node;
  bool inside = false;  // of brackets
  bool first = true;    // of what they list
  for (const char letter : list) {
    if (letter == ',' && !inside) break;
    if (letter == '[') inside = first = true;
    if (letter == ']') inside = false;
    if (letter == '[' || letter == ']') continue;
    if (inside && (letter == '-' || letter == ',')) first = false;
    if (!inside || first) node += letter;
  }
  return node;
}

}  // namespace millrace
