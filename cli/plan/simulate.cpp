// millrace simulate: what a schedule costs in time and memory.
#include <algorithm>
#include <fmt/format.h>
#include <iostream>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "cli/plan/figures.hpp"
#include "cli/plan/options.hpp"
#include "cli/plan/progress.hpp"
#include "cli/subcommands.hpp"
#include "cli/vocabulary.hpp"
#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/optimum.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/verify.hpp"

namespace millrace::cli {

namespace {

constexpr int kDigits = 3;  // of a number in the table of ranks, which has ten of them in a row

/// `shared`: ranks wait for cores.
void print_ranks(const Report& report, bool shared) {
  std::vector<std::vector<std::string>> rows(report.ranks.size() + 1);
  rows.front() = {"rank"};
  for (std::size_t rank = 0; rank < report.ranks.size(); ++rank)
    rows[rank + 1] = {std::to_string(rank)};
  const auto add = [&](std::string_view title, auto&& text_of) {
    rows.front().emplace_back(title);
    for (std::size_t rank = 0; rank < report.ranks.size(); ++rank)
      rows[rank + 1].push_back(text_of(report.ranks[rank]));
  };
  for (const auto& field : result_fields<RankReport>())
    add(field.title, [&](const RankReport& rank) { return shown(field, rank, kDigits); });
  add("idle", [](const RankReport& rank) { return brief(rank.idle.total(), kDigits); });
  for (const auto& field : result_fields<Idle>())
    if (shared || field.name != "processor")
      add(field.title, [&](const RankReport& rank) { return shown(field, rank.idle, kDigits); });
  std::cout << table(rows);
}

/// By stage: what a tree of sums holds at most.
std::vector<int> sums_of_tree(const Program& program, int passes) {
  const auto stages = static_cast<std::size_t>(program.shape.stages());
  return partial_sums(program, std::vector<std::size_t>(stages, 1), passes).of_stage;
}

void print_tree(const Program& program, int passes) {
  std::cout << "partial sums of each stage at most:";
  for (const int sums : sums_of_tree(program, passes)) std::cout << ' ' << sums;
  std::cout << '\n';
}

void print(const Program& program, const Figures& figures, const Costs& costs) {
  const Report& report = figures.report;
  const int cores = costs.cores.value_or(0);  // that the ranks share; 0: one per rank
  const bool shared = cores > 0 && cores < program.shape.ranks;
  std::cout << program.name << ": " << (figures.violations.empty() ? "valid" : "not valid")
            << (figures.order.ascending ? ", same bits as sequential\n" : "\n");
  if (!figures.order.ascending)
    std::cout << "not the bits of sequential: " << figures.order.message << '\n';
  for (const Violation& violation : figures.violations)
    std::cout << "  " << to_string(violation, program) << '\n';
  if (shared)
    std::cout << fmt::format(
        "{} ranks share {} core{}\n", program.shape.ranks, cores, cores == 1 ? "" : "s");
  std::cout << units_text(costs) << filling_hint(program.shape) << '\n'
            << lines_of(report, figures.passes);
  if (figures.passes > 1)
    std::cout
        << "A step is " << figures.passes
        << " passes; the makespan is of the last. All ranks end a pass before the next begins,\n"
           "so steps do not overlap: no span.\n";
  if (report.sums.longest > 0) std::cout << '\n' << lines_of(report.sums);
  if (costs.tree_of_sums) print_tree(program, costs.accumulate);
  std::cout << '\n';
  print_ranks(report, shared);
  std::cout << '\n' << depths_text(figures.channels);
}

// Steps in a row and jittered runs, when asked for.
nlohmann::json more_runs(const Graph& graph, const Cost& cost, const PlanOptions& options) {
  nlohmann::json more = nlohmann::json::object();
  require(options.costs.accumulate == 1 || (options.iterations == 1 && options.jitter == 0), [&] {
    return (options.iterations > 1 ? "--iterations runs steps" : "--jitter varies steps") +
           std::string(" of one pass; leave it or --accumulate ") +
           std::to_string(options.costs.accumulate) + " out";
  });
  if (options.iterations > 1) {
    require(!cost.shares_cores(graph.program().shape.ranks),
            "--iterations overlaps steps, which are simulated with a processor per rank; leave "
            "--cores " +
                std::to_string(options.costs.cores.value_or(0)) + " or --iterations out");
    const auto with = simulate_iterations(graph, cost, options.iterations, Barrier::Yes);
    const auto without = simulate_iterations(graph, cost, options.iterations, Barrier::No);
    more["iterations"] = {{"steps", options.iterations},
                          {"per_step_barrier", with.per_step},
                          {"per_step_overlap", without.per_step},
                          {"total_barrier", with.ends.back()},
                          {"total_overlap", without.ends.back()}};
  }
  if (options.jitter > 0) {
    const Jitter jitter{.amount = options.jitter, .runs = 100, .seed = options.seed};
    const Spread spread = simulate_jitter(graph, cost, jitter);
    more["jitter"] = record_json(spread);
    more["jitter"]["runs"] = jitter.runs;
  }
  return more;
}

/// Unit and assumptions of a cost file.
nlohmann::json file_json(const Costs& costs) {
  nlohmann::json said = nlohmann::json::object();
  if (!costs.file) return said;
  said["unit"] = costs.file->unit;
  if (!costs.file->assumed.empty()) said["assumed"] = costs.file->assumed;
  return said;
}

void print_more(const nlohmann::json& more) {
  const auto text = [](const nlohmann::json& numbers, const char* name) {
    return brief(numbers[name].get<double>());
  };
  if (more.contains("iterations")) {
    const auto& it = more["iterations"];
    std::cout << '\n'
              << table({{text(it, "steps") + " steps", "each", "in all"},
                        {"with a barrier between",
                         text(it, "per_step_barrier"),
                         text(it, "total_barrier")},
                        {"without", text(it, "per_step_overlap"), text(it, "total_overlap")}});
  }
  if (more.contains("jitter")) {
    const auto& it = more["jitter"];
    std::vector<std::vector<std::string>> rows(2);
    for (const auto& field : result_fields<Spread>()) {
      rows[0].emplace_back(field.title);
      rows[1].push_back(brief(it[field.name].get<double>()));
    }
    std::cout << "\nmakespan of " << text(it, "runs") << " jittered runs\n" << table(rows);
  }
}

/// The makespan of a published order that search begins to shorten, within the same memory; none
/// where the subject is another or the costs are none that a search orders by.
std::optional<double> relisted_makespan(const std::string& subject,
                                        const Program& program,
                                        const Cost& cost,
                                        const PlanOptions& options) {
  const auto entries = schedules();
  const auto entry = std::ranges::find(entries, subject, &ScheduleEntry::name);
  const bool orders = !cost.contention && !cost.shares_cores(program.shape.ranks) &&
                      (!cost.tree_of_sums || cost.gradient_bytes.empty());
  if (entry == entries.end() || !entry->relisted || !orders) return std::nullopt;
  const Program order = relist_within_own_memory(compute_only(program), cost);
  const Program whole = lowered(order, options);
  const Graph graph(whole);
  return report(graph, cost, timeline_of(graph, cost)).makespan;
}

/// What `simulate` says of a published order besides its figures.
std::string shorter_text(double makespan, std::optional<double> relisted) {
  if (!relisted) return "";
  return "The published order. Within the same memory search " +
         (*relisted < makespan ? "finds a shorter one: " + plain(makespan) + " -> " +
                                     plain(*relisted) + " or less.\n"
                               : std::string("may find a shorter one.\n"));
}

void run(const std::string& subject, const PlanOptions& options) {
  check_outputs(options);
  PlanProgress progress("simulate " + subject);
  progress.at("making the schedule");
  const Program program = program_of(subject, options);
  const Cost cost = cost_of(program.shape, options);
  progress.at("timing " + std::to_string(program.size()) + " actions");
  const Graph graph(program);
  const Timeline timeline = timeline_of(graph, cost);
  progress.at("checking the schedule, its memory and its channels");
  const Figures figures = figures_of(graph, cost, timeline, options);
  progress.at("simulating further runs");
  const nlohmann::json more = more_runs(graph, cost, options);
  const auto relisted = relisted_makespan(subject, program, cost, options);
  progress.at("drawing");
  const std::vector<OutputFile> files = outputs(options, program, cost, timeline, subject);
  progress.end();
  if (options.json) {
    nlohmann::json all = to_json(figures);
    all.update(identity_json(program));
    all.update(more);
    all.update(file_json(model_costs(options)));
    if (options.costs.tree_of_sums)
      all["partial_sums"] = sums_of_tree(program, options.costs.accumulate);
    if (options.costs.accumulate > 1) all["accumulate"] = options.costs.accumulate;
    if (relisted) all["relisted_makespan"] = *relisted;
    std::cout << all.dump() << '\n';
  } else if (!prints_file(options)) {
    print(program, figures, model_costs(options));
    std::cout << shorter_text(figures.report.makespan, relisted);
    print_more(more);
  }
  write_files(files);
  if (!figures.violations.empty()) throw ExitCode{1};
}

}  // namespace

void add_simulate(CLI::App& app) {
  CLI::App* subcommand =
      app.add_subcommand("simulate", "Times, bubbles, memory and channels of a schedule");
  auto subject = std::make_shared<std::string>();
  auto options = std::make_shared<PlanOptions>();
  subcommand->add_option("schedule", *subject, "Name (millrace list), plan file or CSV file")
      ->required();
  add_plan_options(*subcommand, *options);
  add_json_option(*subcommand, *options);
  add_run_options(*subcommand, *options);
  add_seed_option(*subcommand, *options, "Seed of the jitter (default 1)");
  subcommand->callback([subject, options] { run(*subject, *options); });
}

}  // namespace millrace::cli
