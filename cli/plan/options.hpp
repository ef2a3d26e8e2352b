// The options that all plan subcommands share, and what they mean: which program, which costs,
// which files to write.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/files.hpp"
#include "cli/numbers.hpp"
#include "millrace/scheduler/plan/costs.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
#include "millrace/scheduler/plan/text.hpp"

namespace millrace::cli {

/// Where --comms puts the receives: as early as a rendezvous allows, or right before their use.
enum class Comms : std::uint8_t { None, Early, BeforeUse };

struct PlanOptions {
  ScheduleOptions schedule;  ///< counts as typed; the limit is filled in by schedule_options
  Costs costs;               ///< as typed; without the file of --costs
  std::string costs_file;
  MemoryLimit memory_limit;
  std::vector<std::string> typed_counts;  ///< "-p 8", "-m 24" where given

  bool split = false;     ///< every B as I and W
  std::string recompute;  ///< as typed: which stages; empty: as the schedule says
  Comms comms = Comms::None;
  bool old_letters = false;  ///< of a CSV that is read
  bool skip_sharding = false;
  int iterations = 1;
  double jitter = 0;
  std::uint64_t seed = 1;

  std::optional<CsvEngine> engine;  ///< for which --csv is written; unset: as the program stands
  std::optional<std::string> csv, svg, html, trace, plan;  ///< paths; empty = standard output
  bool json = false;
};

/// Registers what says which schedule, at which costs, into which files. `options` must outlive the
/// parsing.
void add_plan_options(CLI::App& subcommand, PlanOptions& options);

/// As add_plan_options, for schedules side by side, or a plan and a trace of it: without the files
/// that are of one schedule and of no run.
void add_compared_options(CLI::App& subcommand, PlanOptions& options);

/// As add_plan_options, for a schedule that is searched: without what the search chooses or does
/// not read.
void add_searched_options(CLI::App& subcommand, PlanOptions& options);

/// Registers the flags of the costs that are `wanted`. `costs` must outlive the parsing.
void add_cost_options(CLI::App& subcommand,
                      Costs& costs,
                      const std::function<bool(const CostMember&)>& wanted,
                      std::span<const CostMember> members = cost_members());

/// Registers --json.
void add_json_option(CLI::App& subcommand, PlanOptions& options);

/// Registers --iterations and --jitter.
void add_run_options(CLI::App& subcommand, PlanOptions& options);

/// Registers --seed.
void add_seed_option(CLI::App& subcommand, PlanOptions& options, const char* what);

/// The options of one generator, with the memory limit.
[[nodiscard]] ScheduleOptions schedule_options(const ScheduleEntry& entry,
                                               const PlanOptions& options);

/// Whether a subject is a file: it has a dot or slash.
[[nodiscard]] bool is_path(const std::string& subject);

/// The program called `subject`: a schedule of the catalogue, or a file (plan JSON or CSV) when the
/// name has a dot or slash. Lowered when --comms was given. Throws InvalidArgument for a bad
/// option, DataError for a bad file. Recomputes what --recompute says.
[[nodiscard]] Program program_of(const std::string& subject, const PlanOptions& options);

/// The program with reductions and messages where --comms asks for them, and the reductions of
/// several data-parallel replicas, or of replicas whose gradients have bytes.
[[nodiscard]] Program lowered(Program program, const PlanOptions& options);

/// The same for an order that a search found: reductions come after all passes.
[[nodiscard]] Program lowered_order(const Program& order, const PlanOptions& options);

/// The options that the schedule does not take, as typed: "-v 2", "--order lifo".
[[nodiscard]] std::vector<std::string> untaken_options(const std::string& subject,
                                                       const PlanOptions& options);

/// As program_of, leaving out the options that the schedule does not take (compare gives the same
/// options to several schedules).
[[nodiscard]] Program comparable_program_of(const std::string& subject, const PlanOptions& options);

/// What each rank may hold at most, in the unit of --mem-* or the bytes of a cost file: one value
/// for all, or one per rank; empty when not limited. `stages` are those of one copy of the model.
[[nodiscard]] std::vector<double> memory_limits_of(const PlanOptions& options,
                                                   int ranks,
                                                   int stages);

/// The smallest of them: what a generator with one limit for all ranks is given.
[[nodiscard]] std::optional<double> memory_limit_of(const PlanOptions& options,
                                                    int ranks,
                                                    int stages);

/// The costs of a file. Throws DataError with the place of a fault.
[[nodiscard]] Costs costs_in(const std::string& option, const std::string& path);

/// The costs as typed, with the file of --costs. Throws InvalidArgument or DataError.
[[nodiscard]] Costs model_costs(const PlanOptions& options);

/// The units of times and memory; of costs from a file their source and assumptions too. Lines.
[[nodiscard]] std::string units_text(const Costs& costs);

/// Costs for a shape, as millrace::cost_of has them.
[[nodiscard]] Cost cost_of(const Shape& shape, const PlanOptions& options);

/// Simulates. Throws ExitCode 1 after printing the cycle when the program cannot proceed.
[[nodiscard]] Timeline timeline_of(const Graph& graph, const Cost& cost);

/// Whether any of --csv, --svg, --html, --trace, --plan goes to standard output.
[[nodiscard]] bool prints_file(const PlanOptions& options);

/// Throws InvalidArgument when a file cannot be written, or when standard output would get two
/// things: two files, or one and --json. For the start of a subcommand: nothing has been written
/// then.
void check_outputs(const PlanOptions& options);

/// The files that were asked for, to be written when everything else has been printed. With the
/// `subject` of a page that is a schedule of the catalogue, the page also gets it with other
/// numbers of micro-batches.
[[nodiscard]] std::vector<OutputFile> outputs(const PlanOptions& options,
                                              const Program& program,
                                              const Cost& cost,
                                              const Timeline& timeline,
                                              const std::string& subject = "");

}  // namespace millrace::cli
