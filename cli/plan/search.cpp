// millrace search: the best schedule for given counts, costs and memory limit.
#include "millrace/scheduler/plan/search.hpp"

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "cli/files.hpp"
#include "cli/plan/figures.hpp"
#include "cli/plan/options.hpp"
#include "cli/plan/progress.hpp"
#include "cli/subcommands.hpp"
#include "cli/vocabulary.hpp"
#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/text.hpp"

namespace millrace::cli {

namespace {

using Text = const std::string&;

struct SearchArguments {
  PlanOptions plan;
  std::string objective = "makespan";
  std::int64_t budget = SearchOptions{}.budget;
  std::optional<double> time_cap;
  std::optional<std::string> out, pareto, from;
  bool no_bidirectional = false, full_backward = false;
  std::string recompute = "none";
  bool v_placement = false;
};

SearchOptions search_options(const SearchArguments& arguments) {
  const PlanOptions& plan = arguments.plan;
  SearchOptions options;
  options.ranks = plan.schedule.ranks;
  options.micro_batches = plan.schedule.micro_batches;
  options.chunks = plan.schedule.chunks;
  options.slices = plan.schedule.slices;
  if (arguments.from) {
    options.from = std::make_shared<const Program>(program_of(*arguments.from, plan));
    options.ranks = options.from->shape.ranks;
    options.micro_batches = options.from->shape.micro_batches;
    options.slices = options.from->shape.slices;
  }
  options.bidirectional = !arguments.no_bidirectional;
  options.full_backward = arguments.full_backward;
  set_costs(options, model_costs(plan));
  options.objective = arguments.objective == "span" ? Objective::Span : Objective::Makespan;
  const std::vector<double> limits =
      memory_limits_of(plan, options.ranks, options.ranks * options.chunks.value_or(1));
  require(std::ranges::adjacent_find(limits, std::not_equal_to<>()) == limits.end(),
          "--memory-limit has " + value_count(limits.size()) +
              " that differ; the search keeps one limit on all ranks: give one, such as the "
              "smallest, and check the winner with verify");
  if (!limits.empty()) options.memory_limit = limits.front();
  options.recompute = arguments.recompute == "choose";
  options.budget = arguments.budget;
  options.seed = plan.seed;
  if (arguments.v_placement) {
    if (!options.chunks) options.chunks = 2;
    require(*options.chunks >= 2 && options.slices.value_or(1) == 1,
            "--v-placement is of schedules with at least 2 chunks per rank and without slices");
    options.placement = Placement::zigzag(options.ranks, *options.chunks);
  }
  options.time_cap_seconds = arguments.time_cap;
  return options;
}

/// "-v 2 --group 4": what to type to get the schedule that the search started from.
std::string typed(const std::vector<ParameterValue>& parameters) {
  std::string text;
  for (const auto& [name, value] : parameters)
    text += (text.empty() ? "" : " ") + flag(name) + " " + value;
  return text;
}

nlohmann::json front_json(const std::vector<FoundSchedule>& front) {
  nlohmann::json list = nlohmann::json::array();
  for (const FoundSchedule& found : front) {
    nlohmann::json one = record_json(found);
    one.update({{"generator", found.generator},
                {"parameters", typed(found.parameters)},
                {"refinement", found.refinement},
                {"recompute", describe_recompute(found.program)},
                {"v", found.program.shape.chunks()},
                {"q", found.program.shape.slices},
                {"model_copies", found.program.shape.replicas()}});
    list.push_back(std::move(one));
  }
  return list;
}

/// Which schedules the bound and the proof are of.
std::string bound_covers(const SearchArguments& arguments) {
  return arguments.recompute == "choose" ? "recompute by micro-batch" : "no recompute";
}

nlohmann::json result_json(const SearchArguments& arguments,
                           const SearchResult& result,
                           const Figures& figures) {
  nlohmann::json all = to_json(figures);
  const FoundSchedule& best = *result.best;
  all.update(identity_json(best.program));
  all["objective"] = arguments.objective;
  all["generator"] = best.generator;
  all["parameters"] = typed(best.parameters);
  all["refinement"] = best.refinement;
  all["model_copies"] = best.program.shape.replicas();
  all["peak_memory"] = best.peak_memory;
  all["lower_bound"] = result.lower_bound;
  all["gap"] = result.gap;
  all["proven"] = result.proven;
  all["bound_covers"] = bound_covers(arguments);
  all["evaluations"] = result.evaluations;
  all["cut_by_time"] = result.cut_by_time;
  all["front"] = front_json(result.front);
  return all;
}

/// How other subcommands repeat the choice of recompute.
std::string repeating(const Program& program) {
  const std::string text = describe_recompute(program);
  if (text == "none") return "";
  if (text.ends_with(" in part"))
    return "Recomputes " + text + ": --out writes the plan, which simulate and train read.\n";
  return "Recomputes " + text + ": --recompute=" + text +
         " for simulate and train; a plan file says it itself.\n";
}

std::string proof(const SearchArguments& arguments, const SearchResult& result) {
  if (!result.proven) return "";
  const bool chosen = arguments.recompute == "choose";
  return std::string("Proven: no schedule of the shapes considered") +
         (chosen ? ", with recompute by micro-batch," : "") + " is better.\n";
}

void print(const SearchArguments& arguments, const SearchResult& result, const Report& report) {
  const FoundSchedule& best = *result.best;
  const int passes = arguments.plan.costs.accumulate;
  std::vector<std::vector<std::string>> rows = {
      {"makespan", plain(report.makespan), "bubble", percent(report.bubble_makespan_ratio())},
      {"span", plain(report.span), "bubble", percent(report.bubble_span_ratio())},
      {"peak memory", plain(best.peak_memory)},
      {"lower bound of the " + (passes > 1 ? "step" : arguments.objective),
       plain(result.lower_bound),
       "gap",
       percent(result.gap)}};
  if (passes > 1)
    rows.insert(rows.begin() + 1,
                {"step of " + std::to_string(passes) + " passes", plain(best.step)});
  std::cout << best.program.name << '\n'
            << table(rows) << repeating(best.program) << proof(arguments, result)
            << (best.program.shape.replicas() > 1
                    ? "Holds two replicas of the model, which the memory limit does not count.\n"
                    : "")
            << units_text(model_costs(arguments.plan))
            << "Span: time per step if steps overlapped; `train` never overlaps steps.\n\n"
            << "Pareto front of makespan, span and memory:\n"
            << front_table(result.front) << '\n'
            << result.evaluations << " orders timed\n";
}

/// "candidate 12 of 88, wave w=2; best so far 345".
std::string text_of(const SearchProgress& progress) {
  std::string text = progress.at;
  if (progress.candidates > 0)
    text = "candidate " + std::to_string(progress.timed + 1) + " of " +
           std::to_string(progress.candidates) + ", " + text;
  if (progress.best < SearchProgress{}.best) text += "; best so far " + plain(progress.best);
  return text;
}

std::string title(const FoundSchedule& best) {
  std::string name = best.generator;
  if (!best.parameters.empty()) name += " " + to_string(best.parameters);
  if (!best.refinement.empty()) name += " + " + best.refinement;
  const std::string recompute = describe_recompute(best.program);
  return recompute == "none" ? name : name + " + recompute " + recompute;
}

void run(const SearchArguments& arguments) {
  check_outputs(arguments.plan);
  if (arguments.out) require_writable("--out", *arguments.out);
  if (arguments.pareto) require_writable("--pareto", *arguments.pareto);
  const SearchOptions options = search_options(arguments);
  PlanProgress progress("search");
  SearchOptions reporting = options;
  reporting.progress = [&progress](const SearchProgress& at) { progress.at(text_of(at)); };
  SearchResult result = search(reporting);
  progress.end();
  if (result.cut_by_time)
    std::cerr << "millrace: the time cap of " << plain(*arguments.time_cap)
              << " s cut the search; the result depends on this machine's speed\n";
  if (!result.best) {
    std::cerr << "millrace: no schedule was found within the memory limit of "
              << plain(options.memory_limit) << " per rank"
              << (options.recompute ? ""
                                    : "; --recompute choose lets stages run their forward again "
                                      "to hold less")
              << '\n';
    throw ExitCode{1};
  }
  Program& program = result.best->program;
  program.name = title(*result.best);
  const Program whole = lowered_order(program, arguments.plan);
  const Cost cost =
      millrace::cost_of(whole.shape, costs_that_apply(model_costs(arguments.plan), whole.shape));
  const Graph graph(whole);
  const Timeline timeline = timeline_of(graph, cost);
  if (arguments.plan.json) {
    std::cout
        << result_json(arguments, result, figures_of(graph, cost, timeline, arguments.plan)).dump()
        << '\n';
  } else if (!prints_file(arguments.plan)) {
    print(arguments, result, report(graph, cost, timeline));
  }
  std::vector<OutputFile> files = outputs(arguments.plan, whole, cost, timeline);
  if (arguments.out) files.push_back({"--out", *arguments.out, write_plan({whole, {}})});
  if (arguments.pareto) files.push_back({"--pareto", *arguments.pareto, front_svg(result.front)});
  write_files(files);
}

void add_search_options(CLI::App& subcommand, SearchArguments& arguments) {
  subcommand.add_option_function<std::string>(
      "--objective",
      [&arguments](Text text) {
        require(text == "makespan" || text == "span",
                "--objective " + text + ": must be makespan or span");
        arguments.objective = text;
      },
      "What to make small: makespan (default) or span");
  subcommand.add_option_function<std::string>(
      "--budget",
      [&arguments](Text text) {
        arguments.budget = whole_number("--budget", text, 0, 1'000'000'000);
      },
      "Orders that the local search may time (default 20000)");
  subcommand.add_option_function<std::string>(
      "--time-cap",
      [&arguments](Text text) { arguments.time_cap = decimal("--time-cap", text, 0); },
      "Seconds after which the search stops where it is, and says so");
  subcommand
      .add_option_function<std::string>(
          "--from",
          [&arguments](Text text) { arguments.from = text; },
          "Begin with this plan or CSV file too, at its counts; the result is not worse")
      ->type_name("PLAN");
  subcommand
      .add_option_function<std::string>(
          "--out",
          [&arguments](Text text) { arguments.out = text; },
          "Write the winner as a plan file (as --plan)")
      ->type_name("FILE");
  subcommand
      .add_option_function<std::string>(
          "--pareto",
          [&arguments](Text text) { arguments.pareto = text; },
          "Write the front of makespan, span and memory as an SVG picture")
      ->type_name("FILE");
  subcommand
      .add_option_function<std::string>(
          "--recompute",
          [&arguments](Text text) {
            require(text == "choose" || text == "none",
                    "--recompute " + text + ": must be choose or none: the search finds " +
                        "the stages, simulate and train take them");
            arguments.recompute = text;
          },
          "choose: let stages run their forward again for some or all micro-batches where memory "
          "is short, in the time of --r, and say which (default none)")
      ->type_name("WHICH");
  subcommand.add_flag("--full-backward",
                      arguments.full_backward,
                      "Only schedules with whole backward passes: no I and W");
  subcommand.add_flag("--no-bidirectional",
                      arguments.no_bidirectional,
                      "Leave out schedules that hold two replicas of the model");
  subcommand.add_flag(
      "--v-placement",
      arguments.v_placement,
      "Only schedules whose stages run over the ranks and back (v = 2 unless given), so "
      "that the first and the last share rank 0");
}

}  // namespace

void add_search(CLI::App& app) {
  CLI::App* subcommand = app.add_subcommand(
      "search", "Find the best schedule for counts, costs and a memory limit, and how good it is");
  auto arguments = std::make_shared<SearchArguments>();
  add_searched_options(*subcommand, arguments->plan);
  add_json_option(*subcommand, arguments->plan);
  add_seed_option(*subcommand, arguments->plan, "Seed of the local search (default 1)");
  add_search_options(*subcommand, *arguments);
  subcommand->callback([arguments] { run(*arguments); });
}

}  // namespace millrace::cli
