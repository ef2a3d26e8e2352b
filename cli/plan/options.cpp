// The shared options of the plan verbs: their registration. What they mean is in programs.cpp
// (which schedule), costs.cpp, links.cpp, limits.cpp (memory) and outputs.cpp (files).
#include "cli/plan/options.hpp"

#include "cli/vocabulary.hpp"
#include "millrace/core/error.hpp"

namespace millrace::cli {

namespace {

constexpr double kAny = -1e15;

using Text = const std::string&;

/// "Backward order of gpipe and bfs: fifo or lifo (default fifo)"; of numbers the range is plain.
std::string help_of(const ScheduleParameter& parameter) {
  std::string help(parameter.help);
  if (std::holds_alternative<std::optional<BackwardOrder> ScheduleOptions::*>(parameter.field))
    help += ": " + allowed_values(parameter);
  const std::string preset = default_value(parameter);
  return help + (preset.empty() ? "" : " (default " + preset + ")");
}

void add_parameter(CLI::App& verb, PlanOptions& options, const ScheduleParameter& parameter) {
  verb.add_option_function<std::string>(
      flags(parameter.name),
      [&options, &parameter](Text text) {
        set_value(options.schedule, parameter, text);
        if (std::holds_alternative<int ScheduleOptions::*>(parameter.field))
          options.typed_counts.push_back(flag(parameter.name) + " " + text);
      },
      help_of(parameter));
}

using Numbers = std::vector<double>;

void add_list(CLI::App& verb, const char* name, Numbers& value, double least, const char* what) {
  verb.add_option_function<std::string>(
      name, [name, &value, least](Text text) { value = number_list(name, text, least); }, what);
}

void add_path(CLI::App& verb,
              const char* name,
              std::optional<std::string>& path,
              const char* what) {
  verb.add_option_function<std::string>(
          name, [&path](Text text) { path = text; }, what)
      ->expected(0, 1)
      ->type_name("FILE");
}

Comms comms_named(Text text) {
  require(text == "early" || text == "before-use",
          "--comms " + text + ": must be early or before-use");
  return text == "early" ? Comms::Early : Comms::BeforeUse;
}

void add_parameters(CLI::App& verb, PlanOptions& options, bool searched) {
  for (const ScheduleParameter& parameter : kScheduleParameters)
    if (parameter.name != "memory_limit" &&  // add_memory_options knows more of it
        !(searched && parameter.searched))
      add_parameter(verb, options, parameter);
  const std::string comms =
      "Lower to sends and receives: --comms=early has receives as early as a rendezvous allows "
      "(default), --comms=before-use right before their use";
  verb.add_flag("--comms{early}", comms)->each([&options](Text text) {
    options.comms = comms_named(text);
  });
}

void add_reading_options(CLI::App& verb, PlanOptions& options) {
  verb.add_flag("--old-letters",
                options.old_letters,
                "A CSV that is read has PyTorch's old letters: B input gradient, BW full backward");
  verb.add_flag("--skip-sharding", options.skip_sharding, "Leave UNSHARD and RESHARD of a CSV out");
}

/// Ways to time a schedule that a search does not have.
void add_timing_options(CLI::App& verb, PlanOptions& options) {
  verb.add_flag(
      "--atomic-pairs", options.costs.atomic_pairs, "Run overlapped pairs as one op of F + B");
  verb.add_option_function<std::string>(
      "--pair-cost",
      [&options](Text text) {
        const Numbers times = number_list("--pair-cost", text, 0);
        require(times.size() == 1,
                "--pair-cost has " + value_count(times.size()) + "; a pair has one time");
        options.costs.pair_cost = times.front();
      },
      "Run overlapped pairs as one op of this time, of a full stage (default: one half after the "
      "other)");
  verb.add_flag("--contention",
                options.costs.contention,
                "Messages of one directed link follow one another; needs --bandwidth");
  verb.add_option_function<std::string>(
          "--cores",
          [&options](Text text) {
            options.costs.cores = static_cast<int>(whole_number("--cores", text, 1, 1'000'000));
          },
          "Processors that the ranks share, where they are fewer: at most so many passes run at a "
          "time, first come first served (default: one per rank)")
      ->type_name("N");
}

void add_time_options(CLI::App& verb, PlanOptions& options) {
  add_list(verb,
           "--f",
           options.costs.forward,
           0,
           "Time of F of a full stage: 1 value; p values, of p consecutive full stages; or p v "
           "values, of every stage as if it were a full one (default 1)");
  add_list(verb, "--i", options.costs.input, 0, "Time of I, likewise (default 1)");
  add_list(verb, "--w", options.costs.weight, 0, "Time of W, likewise; B takes I + W (default 1)");
  add_list(verb,
           "--r",
           options.costs.recompute_time,
           0,
           "Time of a recompute, likewise (default: as --f)");
  add_list(verb,
           "--slice-costs",
           options.costs.slice_costs,
           0,
           "Shares of the slices in a stage's times, q numbers: 1,1.2,1.4 (default: equal)");
  verb.add_flag("--chunk-costs", options.costs.chunk_costs, "--f --i --w --mem-* are of a chunk");
  verb.add_option("--costs", options.costs_file, "Costs from a file that train --profile wrote")
      ->type_name("FILE");
}

void add_link_options(CLI::App& verb, PlanOptions& options) {
  add_list(verb,
           "--latency",
           options.costs.latency,
           0,
           "Time of a message between ranks: 1 value, or p x p, from rank 0 to each rank first "
           "(default 0)");
  add_list(verb,
           "--bandwidth",
           options.costs.bandwidth,
           0,
           "Bytes per unit of time of a link: 1 or p x p values, 0 is unlimited, from a rank to "
           "itself for its copies; needs --message-bytes or --gradient-bytes");
  verb.add_option_function<std::string>(
      "--message-bytes",
      [&options](Text text) { options.costs.message_bytes = decimal("--message-bytes", text, 0); },
      "Bytes of the message of one micro-batch");
  add_list(verb,
           "--rank-speed",
           options.costs.rank_speed,
           1e-9,
           "Speed of every rank, one value each: an op takes its time / speed (default 1)");
}

void add_copies_options(CLI::App& verb, PlanOptions& options) {
  const std::string name = flags("data_parallel");
  verb.add_option_function<std::string>(
          name,
          [&options](Text text) {
            options.costs.data_parallel =
                static_cast<int>(whole_number(flag("data_parallel"), text, 1, 1'000'000));
          },
          "Copies of the pipeline that are trained side by side: the gradients of a stage are "
          "added "
          "over them after its last B or W, beside the passes that follow (default 1)")
      ->type_name("D");
  add_list(verb,
           "--gradient-bytes",
           options.costs.gradient_bytes,
           0,
           "Bytes of the gradients of a full stage, as --f: of what -d or a schedule in both "
           "directions adds over links, or "
           "--accumulate-order tree keeps (default 0)");
}

void add_accumulate_option(CLI::App& verb, PlanOptions& options) {
  const std::string name = flag("accumulate");
  verb.add_option_function<std::string>(
          name,
          [&options, name](Text text) {
            options.costs.accumulate = static_cast<int>(whole_number(name, text, 1, 1'000'000));
          },
          "Passes of m micro-batches in one step, whose gradients are added up: a pass begins when "
          "all ranks have ended the one before, and sums over copies follow the last one alone, "
          "which is drawn (default 1)")
      ->type_name("K");
}

/// Which a search does not order by.
void add_order_option(CLI::App& verb, PlanOptions& options) {
  verb.add_option_function<std::string>(
      "--accumulate-order",
      [&options](Text text) {
        require(text == "ascending" || text == "tree",
                "--accumulate-order " + text + ": must be ascending or tree");
        options.costs.tree_of_sums = text == "tree";
      },
      "How gradients of micro-batches are added: ascending (default), or tree, whose partial sums "
      "are counted, as memory where --gradient-bytes or --costs say their size");
}

void add_memory_options(CLI::App& verb, PlanOptions& options, const std::string& limits) {
  add_list(verb,
           "--mem-f",
           options.costs.memory_forward,
           kAny,
           "Change of memory at F of a full stage (default 1)");
  add_list(verb, "--mem-i", options.costs.memory_input, kAny, "Change at the end of I (default 0)");
  add_list(verb,
           "--mem-w",
           options.costs.memory_weight,
           kAny,
           "Change at the end of W (default: gives back all of --mem-f and --mem-i)");
  add_list(verb,
           "--mem-boundary",
           options.costs.memory_boundary,
           0,
           "What F keeps of a stage of any size that recomputes: its input (default 0)");
  verb.add_option("--memory-limit",
                  options.memory_limit,
                  "Most that a rank may hold at any moment, inside passes too: " + limits +
                      ", in the unit of --mem-* (bytes with --costs); with suffix p: x p x mem-f "
                      "of a full stage")
      ->type_name("LIMIT");
}

void add_output_options(CLI::App& verb, PlanOptions& options) {
  add_path(verb, "--csv", options.csv, "Write PyTorch's schedule CSV (no FILE: standard output)");
  add_path(verb, "--svg", options.svg, "Write an SVG picture");
  add_path(verb, "--html", options.html, "Write a page to explore");
  add_path(verb, "--trace", options.trace, "Write a trace for Perfetto or Chrome");
  add_path(verb, "--plan", options.plan, "Write a plan file that train --plan runs");
}

void add_recompute_option(CLI::App& verb, PlanOptions& options) {
  verb.add_flag("--recompute{all}",
                options.recompute,
                "Run the forward of stages again right before their backward instead of keeping "
                "what it made: =all (default), =stages:LIST (0,2-3), =none");
}

/// Which schedule, at which costs.
void add_generated_options(CLI::App& verb, PlanOptions& options) {
  add_parameters(verb, options, false);
  add_recompute_option(verb, options);
  add_reading_options(verb, options);
  add_time_options(verb, options);
  add_link_options(verb, options);
  add_copies_options(verb, options);
  add_accumulate_option(verb, options);
  add_order_option(verb, options);
  add_timing_options(verb, options);
  add_memory_options(verb, options, "1 value or one per rank");
}

}  // namespace

void add_plan_options(CLI::App& verb, PlanOptions& options) {
  add_generated_options(verb, options);
  add_output_options(verb, options);
}

void add_compared_options(CLI::App& verb, PlanOptions& options) {
  add_generated_options(verb, options);
  add_path(verb,
           "--csv",
           options.csv,
           "Write the table of schedules, or the plan as PyTorch's schedule CSV (no FILE: standard "
           "output)");
  add_path(verb, "--svg", options.svg, "Write an SVG picture of the schedules, or of the run");
  add_path(
      verb, "--html", options.html, "With PLAN TRACE.json: write the run as a page to explore");
}

void add_searched_options(CLI::App& verb, PlanOptions& options) {
  add_parameters(verb, options, true);
  add_time_options(verb, options);
  add_link_options(verb, options);
  add_copies_options(verb, options);
  add_accumulate_option(verb, options);
  add_memory_options(verb, options, "the same on all ranks");
  add_output_options(verb, options);
}

void add_json_option(CLI::App& verb, PlanOptions& options) {
  verb.add_flag("--json", options.json, "Print one JSON object");
}

void add_run_options(CLI::App& verb, PlanOptions& options) {
  verb.add_option_function<std::string>(
      "--iterations",
      [&options](Text text) {
        options.iterations = static_cast<int>(whole_number("--iterations", text, 1, 100'000));
      },
      "Steps in a row, with and without a barrier between them (default 1)");
  verb.add_option_function<std::string>(
      "--jitter",
      [&options](Text text) { options.jitter = decimal("--jitter", text, 0, 1); },
      "Spread of every op's time, as a share of it, over 100 runs (default 0)");
}

void add_seed_option(CLI::App& verb, PlanOptions& options, const char* what) {
  verb.add_option_function<std::string>(
      "--seed",
      [&options](Text text) {
        options.seed = static_cast<std::uint64_t>(whole_number("--seed", text, 0, INT64_MAX));
      },
      what);
}

}  // namespace millrace::cli
