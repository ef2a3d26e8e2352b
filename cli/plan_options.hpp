// The options that all plan verbs share, and what they mean: which program, which costs, which
// files to write.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "cli/numbers.hpp"
#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/simulate.hpp"

namespace millrace::cli {

struct PlanOptions {
  ScheduleOptions schedule;  ///< counts as typed; costs and limit are filled in by schedule_options
  NumberList forward{{1}}, input{{1}}, weight{{1}}, latency{{0}};
  NumberList memory_forward{{1}}, memory_input{{0}};
  std::optional<NumberList> memory_weight;  ///< default: what gives all of it back
  std::optional<double> bandwidth, message_bytes;
  std::string memory_limit;  ///< as typed; empty = none
  bool chunk_costs = false;
  bool atomic_pairs = false;
  std::string costs_file;

  bool comms = false;        ///< lower to sends and receives
  bool old_letters = false;  ///< of a CSV that is read
  bool skip_sharding = false;
  int iterations = 1;
  double jitter = 0;
  std::uint64_t seed = 1;

  std::optional<std::string> csv, svg, html, trace, plan;  ///< paths; empty = standard output
  bool json = false;
};

/// Registers all of them with a verb. `options` must outlive the parsing.
void add_plan_options(CLI::App& verb, PlanOptions& options);

/// The generator options with costs and memory limit.
[[nodiscard]] ScheduleOptions schedule_options(const PlanOptions& options);

/// The program called `subject`: a schedule of the catalogue, or a file (plan JSON or CSV) when the
/// name has a dot or slash. Lowered when --comms was given. Throws InvalidArgument for a bad
/// option, DataError for a bad file.
[[nodiscard]] Program program_of(const std::string& subject, const PlanOptions& options);

/// As program_of, leaving out the options that the schedule does not have (compare gives the same
/// options to several schedules).
[[nodiscard]] Program comparable_program_of(const std::string& subject, const PlanOptions& options);

/// What is owed in memory at most, in the unit of --mem-*; empty when not limited.
[[nodiscard]] std::optional<double> memory_limit_of(const PlanOptions& options, int ranks);

/// Costs for a shape. Every time is a whole number of ticks when the given times have at most nine
/// decimals.
[[nodiscard]] Cost cost_of(const Shape& shape, const PlanOptions& options);

/// Simulates. Throws ExitCode 1 after printing the cycle when the program cannot proceed.
[[nodiscard]] Timeline timeline_of(const Graph& graph, const Cost& cost);

/// Whether any of --csv, --svg, --html, --trace, --plan goes to standard output.
[[nodiscard]] bool prints_file(const PlanOptions& options);

/// Writes the files that were asked for.
void write_outputs(const PlanOptions& options,
                   const Program& program,
                   const Cost& cost,
                   const Timeline& timeline);

}  // namespace millrace::cli
