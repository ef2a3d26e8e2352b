// Registers the options that plan subcommands share. What uses them: programs.cpp (the schedule),
// costs.cpp (costs and memory limits), outputs.cpp (files).
#include "cli/plan/options.hpp"

#include "cli/vocabulary.hpp"
#include "millrace/core/error.hpp"

namespace millrace::cli {

namespace {

using Text = const std::string&;

/// "Backward order of gpipe and bfs: fifo or lifo (default fifo)"; of numbers the range is plain.
std::string help_of(const ScheduleParameter& parameter) {
  std::string help(parameter.help);
  if (std::holds_alternative<std::optional<BackwardOrder> ScheduleOptions::*>(parameter.field))
    help += ": " + allowed_values(parameter);
  const std::string preset = default_value(parameter);
  return help + (preset.empty() ? "" : " (default " + preset + ")");
}

void add_parameter(CLI::App& subcommand, PlanOptions& options, const ScheduleParameter& parameter) {
  subcommand.add_option_function<std::string>(
      flags(parameter.name),
      [&options, &parameter](Text text) {
        set_value(options.schedule, parameter, text);
        if (std::holds_alternative<int ScheduleOptions::*>(parameter.field))
          options.typed_counts.push_back(flag(parameter.name) + " " + text);
      },
      help_of(parameter));
}

void add_path(CLI::App& subcommand,
              const char* name,
              std::optional<std::string>& path,
              const char* what) {
  subcommand
      .add_option_function<std::string>(
          name, [&path](Text text) { path = text; }, what)
      ->expected(0, 1)
      ->type_name("FILE");
}

Comms comms_named(Text text) {
  require(text == "early" || text == "before-use",
          "--comms " + text + ": must be early or before-use");
  return text == "early" ? Comms::Early : Comms::BeforeUse;
}

void add_parameters(CLI::App& subcommand, PlanOptions& options, bool searched) {
  for (const ScheduleParameter& parameter : kScheduleParameters)
    if (parameter.name != "memory_limit" &&  // add_memory_limit knows more of it
        !(searched && parameter.searched))
      add_parameter(subcommand, options, parameter);
  const std::string comms =
      "Lower to sends and receives: --comms=early has receives as early as a rendezvous allows "
      "(default), --comms=before-use right before their use";
  subcommand.add_flag("--comms{early}", comms)->each([&options](Text text) {
    options.comms = comms_named(text);
  });
}

void add_reading_options(CLI::App& subcommand, PlanOptions& options) {
  subcommand.add_flag(
      "--legacy-csv",
      options.old_letters,
      "A CSV that is read has PyTorch's old letters: B input gradient, BW full backward");
  subcommand.add_flag(
      "--skip-sharding", options.skip_sharding, "Leave UNSHARD and RESHARD of a CSV out");
}

/// The help of a row, with costs by their flags.
std::string help_of(const CostMember& row) {
  std::string help;
  std::size_t from = 0;
  for (std::size_t tick = row.help.find('`'); tick != std::string_view::npos;
       tick = row.help.find('`', from)) {
    const std::size_t end = row.help.find('`', tick + 1);
    help += row.help.substr(from, tick - from);
    help += flag(row.help.substr(tick + 1, end - tick - 1));
    from = end + 1;
  }
  return help.append(row.help.substr(from));
}

void set_cost(Costs& costs, const CostMember& row, Text text) {
  const std::string name = flag(row.name);
  const auto count = [&] {
    return static_cast<int>(
        whole_number(name, text, static_cast<std::int64_t>(row.least), 1'000'000));
  };
  if (const auto* list = std::get_if<std::vector<double> Costs::*>(&row.member))
    costs.** list = number_list(name, text, row.least);
  else if (const auto* number = std::get_if<std::optional<double> Costs::*>(&row.member))
    costs.** number = decimal(name, text, row.least);
  else if (const auto* some = std::get_if<std::optional<int> Costs::*>(&row.member))
    costs.** some = count();
  else
    costs.*std::get<int Costs::*>(row.member) = count();
}

/// --accumulate-order tree is the one flag with a word.
void add_order_option(CLI::App& subcommand, Costs& costs, const CostMember& row) {
  subcommand.add_option_function<std::string>(
      "--accumulate-order",
      [&costs](Text text) {
        require(text == "ascending" || text == "tree",
                "--accumulate-order " + text + ": must be ascending or tree");
        costs.tree_of_sums = text == "tree";
      },
      "ascending (default), or tree: " + help_of(row));
}

void add_cost_file(CLI::App& subcommand, PlanOptions& options) {
  subcommand
      .add_option("--costs", options.costs_file, "Costs from a file that train --profile wrote")
      ->type_name("FILE");
}

void add_memory_limit(CLI::App& subcommand, PlanOptions& options, const std::string& limits) {
  subcommand
      .add_option_function<std::string>(
          "--memory-limit",
          [&options](Text text) { options.memory_limit = parse_memory_limit(text); },
          "Most that a rank may hold at any moment, inside passes too: " + limits +
              ", in the unit of --mem-* (bytes with --costs); with suffix p: x p x mem-f of a full "
              "stage")
      ->type_name("LIMIT");
}

void add_output_options(CLI::App& subcommand, PlanOptions& options) {
  add_path(
      subcommand, "--csv", options.csv, "Write PyTorch's schedule CSV (no FILE: standard output)");
  add_path(subcommand, "--svg", options.svg, "Write an SVG picture");
  add_path(subcommand, "--html", options.html, "Write a page to explore");
  add_path(subcommand, "--trace", options.trace, "Write a trace for Perfetto or Chrome");
  add_path(subcommand, "--plan", options.plan, "Write a plan file that train --plan runs");
}

void add_recompute_option(CLI::App& subcommand, PlanOptions& options) {
  subcommand.add_flag(
      "--recompute{all}",
      options.recompute,
      "Run the forward of stages again right before their backward instead of keeping "
      "what it made: =all (default), =stages:LIST (0,2-3), =none");
}

/// Which schedule, at which costs.
void add_generated_options(CLI::App& subcommand, PlanOptions& options) {
  add_parameters(subcommand, options, false);
  subcommand.add_flag("--split", options.split, "Run every whole backward pass as I, then W");
  add_recompute_option(subcommand, options);
  add_reading_options(subcommand, options);
  add_cost_options(subcommand, options.costs, [](const CostMember&) { return true; });
  add_cost_file(subcommand, options);
  add_memory_limit(subcommand, options, "1 value or one per rank");
}

}  // namespace

void add_cost_options(CLI::App& subcommand,
                      Costs& costs,
                      const std::function<bool(const CostMember&)>& wanted,
                      std::span<const CostMember> members) {
  for (const CostMember& row : members) {
    if (row.help.empty() || !wanted(row)) continue;
    if (row.name == "tree_of_sums") {
      add_order_option(subcommand, costs, row);
    } else if (const auto* on = std::get_if<bool Costs::*>(&row.member)) {
      subcommand.add_flag(flags(row.name), costs.**on, help_of(row));
    } else {
      CLI::Option* option = subcommand.add_option_function<std::string>(
          flags(row.name), [&costs, &row](Text text) { set_cost(costs, row, text); }, help_of(row));
      if (!std::holds_alternative<std::vector<double> Costs::*>(row.member))
        option->type_name(
            std::holds_alternative<std::optional<double> Costs::*>(row.member) ? "NUMBER" : "N");
    }
  }
}

void add_plan_options(CLI::App& subcommand, PlanOptions& options) {
  add_generated_options(subcommand, options);
  add_output_options(subcommand, options);
}

void add_compared_options(CLI::App& subcommand, PlanOptions& options) {
  add_generated_options(subcommand, options);
  add_path(subcommand,
           "--csv",
           options.csv,
           "Write the table of schedules, or the plan as PyTorch's schedule CSV (no FILE: standard "
           "output)");
  add_path(
      subcommand, "--svg", options.svg, "Write an SVG picture of the schedules, or of the run");
  add_path(subcommand,
           "--html",
           options.html,
           "With PLAN TRACE.json: write the run as a page to explore");
}

void add_searched_options(CLI::App& subcommand, PlanOptions& options) {
  add_parameters(subcommand, options, true);
  add_cost_options(subcommand, options.costs, [](const CostMember& row) { return row.in_search; });
  add_cost_file(subcommand, options);
  add_memory_limit(subcommand, options, "the same on all ranks");
  add_output_options(subcommand, options);
}

void add_json_option(CLI::App& subcommand, PlanOptions& options) {
  subcommand.add_flag("--json", options.json, "Print one JSON object");
}

void add_run_options(CLI::App& subcommand, PlanOptions& options) {
  subcommand.add_option_function<std::string>(
      "--iterations",
      [&options](Text text) {
        options.iterations = static_cast<int>(whole_number("--iterations", text, 1, 100'000));
      },
      "Steps in a row, with and without a barrier between them (default 1)");
  subcommand.add_option_function<std::string>(
      "--jitter",
      [&options](Text text) { options.jitter = decimal("--jitter", text, 0, 1); },
      "Spread of every op's time, as a share of it, over 100 runs (default 0)");
}

void add_seed_option(CLI::App& subcommand, PlanOptions& options, const char* what) {
  subcommand.add_option_function<std::string>(
      "--seed",
      [&options](Text text) {
        options.seed = static_cast<std::uint64_t>(whole_number("--seed", text, 0, INT64_MAX));
      },
      what);
}

}  // namespace millrace::cli
