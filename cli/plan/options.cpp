// The shared options of the plan verbs: registration and the generator's share. Costs are in
// plan_costs.cpp, files in plan_outputs.cpp.
#include "cli/plan/options.hpp"

#include <algorithm>
#include <iostream>
#include <numeric>

#include "cli/files.hpp"
#include "cli/verbs.hpp"
#include "cli/vocabulary.hpp"
#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/text.hpp"

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

// A list of costs; that it was given is remembered, since a cost file says the same things.
template <class List>
void add_costs(CLI::App& verb,
               PlanOptions& options,
               const char* name,
               List PlanOptions::*value,
               double least,
               const char* what) {
  verb.add_option_function<std::string>(
      name,
      [name, &options, value, least](Text text) {
        options.*value = number_list(name, text, least);
        options.typed_costs.emplace_back(name);
      },
      what);
}

void add_list(CLI::App& verb,
              const char* name,
              std::optional<NumberList>& value,
              double least,
              const char* what) {
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
          "--comms is '" + text + "'; known are early and before-use");
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
  verb.add_flag("--atomic-pairs", options.atomic_pairs, "Run overlapped pairs as one op of F + B");
  verb.add_option_function<std::string>(
      "--pair-cost",
      [&options](Text text) {
        options.pair_cost = number_list("--pair-cost", text, 0);
        require(options.pair_cost->values.size() == 1,
                "--pair-cost has " + value_count(options.pair_cost->values.size()) +
                    "; a pair has one time");
      },
      "Run overlapped pairs as one op of this time, of a full stage (default: one half after the "
      "other)");
  verb.add_flag("--contention",
                options.contention,
                "Messages of one directed link follow one another; needs --bandwidth");
}

void add_time_options(CLI::App& verb, PlanOptions& options) {
  add_costs(verb,
            options,
            "--f",
            &PlanOptions::forward,
            0,
            "Time of F of a full stage: 1 value; p values, of p consecutive full stages; or p v "
            "values, of every stage as if it were a full one (default 1)");
  add_costs(verb, options, "--i", &PlanOptions::input, 0, "Time of I, likewise (default 1)");
  add_costs(verb,
            options,
            "--w",
            &PlanOptions::weight,
            0,
            "Time of W, likewise; B takes I + W (default 1)");
  add_costs(verb,
            options,
            "--slice-costs",
            &PlanOptions::slice_costs,
            0,
            "Shares of the slices in a stage's times, q numbers: 1,1.2,1.4 (default: equal)");
  verb.add_flag("--chunk-costs", options.chunk_costs, "--f --i --w --mem-* are of a chunk");
  verb.add_option("--costs", options.costs_file, "Costs from a file that train --profile wrote")
      ->type_name("FILE");
}

void add_link_options(CLI::App& verb, PlanOptions& options) {
  add_list(verb,
           "--latency",
           options.latency,
           0,
           "Time of a message between ranks: 1 value, or p x p, from rank 0 to each rank first "
           "(default 0)");
  add_list(verb,
           "--bandwidth",
           options.bandwidth,
           0,
           "Bytes per unit of time of a link: 1 or p x p values, 0 is unlimited; needs "
           "--message-bytes");
  verb.add_option_function<std::string>(
      "--message-bytes",
      [&options](Text text) { options.message_bytes = decimal("--message-bytes", text, 0); },
      "Bytes of the message of one micro-batch");
  add_list(verb,
           "--rank-speed",
           options.rank_speed,
           1e-9,
           "Speed of every rank, one value each: an op takes its time / speed (default 1)");
}

void add_memory_options(CLI::App& verb, PlanOptions& options) {
  add_costs(verb,
            options,
            "--mem-f",
            &PlanOptions::memory_forward,
            kAny,
            "Change of memory at F of a full stage (default 1)");
  add_costs(verb,
            options,
            "--mem-i",
            &PlanOptions::memory_input,
            kAny,
            "Change at the end of I (default 0)");
  add_costs(verb,
            options,
            "--mem-w",
            &PlanOptions::memory_weight,
            kAny,
            "Change at the end of W (default: gives back all of --mem-f and --mem-i)");
  verb.add_option("--memory-limit",
                  options.memory_limit,
                  "Limit per rank after every op, 1 value or one per rank, in the unit of --mem-* "
                  "(bytes with --costs); with suffix p: x p x mem-f of a full stage")
      ->type_name("LIMIT");
}

void add_output_options(CLI::App& verb, PlanOptions& options) {
  add_path(verb, "--csv", options.csv, "Write PyTorch's schedule CSV (no FILE: standard output)");
  add_path(verb, "--svg", options.svg, "Write an SVG picture");
  add_path(verb, "--html", options.html, "Write a page to explore");
  add_path(verb, "--trace", options.trace, "Write a trace for Perfetto or Chrome");
  add_path(verb, "--plan", options.plan, "Write a plan file that train --plan runs");
}

double total(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

double mean(const NumberList& list) {
  return total(list.values) / static_cast<double>(list.values.size());
}

// "2q" was meant to end in p.
double plain_limit(const std::string& text) {
  const bool number = text.find_first_not_of("0123456789.+-e") == std::string::npos;
  require(number || text.empty(),
          "--memory-limit is '" + text +
              "'; expected a number, or a number with suffix p (times p x mem-f)");
  return decimal("--memory-limit", text, 0);
}

// What a generator takes of a cost file: the mean full stage.
ScheduleOptions with_file(ScheduleOptions schedule, const PlanOptions& options) {
  const CostFile file = cost_file_of(options);
  const Cost& cost = file.cost;
  const double units = cost.ticks_per_unit * schedule.ranks;
  schedule.forward = total(cost.forward) / units;
  schedule.input = total(cost.backward_input) / units;
  schedule.weight = total(cost.backward_weight) / units;
  if (!options.latency) schedule.latency = cost.latency / cost.ticks_per_unit;
  if (cost.memory_forward.empty()) return schedule;
  schedule.memory_forward = total(cost.memory_forward) / schedule.ranks;
  schedule.memory_input = total(cost.memory_input) / schedule.ranks;
  schedule.memory_weight = total(cost.memory_weight) / schedule.ranks;
  return schedule;
}

// A limit needs something to limit: a cost file may say nothing about memory.
void require_memory(const CostFile& file, const PlanOptions& options) {
  const auto& typed = options.typed_costs;
  const bool says = !file.cost.memory_forward.empty() ||
                    std::any_of(typed.begin(), typed.end(), [](const std::string& option) {
                      return option.starts_with("--mem-");
                    });
  require(says,
          "--memory-limit was given, but --costs " + options.costs_file +
              " says nothing about memory; give --mem-f, --mem-i and --mem-w with it, or "
              "memory_forward, memory_input and memory_weight in the file");
}

// One entry of --memory-limit.
double limit_in(std::string text, const PlanOptions& options, int ranks, int stages) {
  std::optional<CostFile> file;
  if (!options.costs_file.empty()) require_memory(file.emplace(cost_file_of(options)), options);
  if (text.empty() || text.back() != 'p') return plain_limit(text);
  text.pop_back();
  require(!text.empty(), "--memory-limit is 'p'; expected a number before the p, such as 1p");
  const double limit = decimal("--memory-limit", text, 0);
  if (file && !file->cost.memory_forward.empty()) return limit * total(file->cost.memory_forward);
  return limit * mean(options.memory_forward) * (options.chunk_costs ? stages : ranks);
}

/// The flag that reads what the file has.
std::string cure_of(const Diagnostic& diagnostic) {
  if (diagnostic.cure == CsvCure::None) return "";
  return diagnostic.cure == CsvCure::OldLetters ? " (--old-letters)" : " (--skip-sharding)";
}

std::string faults(const std::string& path, const std::vector<Diagnostic>& diagnostics) {
  std::string text;
  for (const Diagnostic& diagnostic : diagnostics)
    text += (text.empty() ? "" : "\nmillrace: ") + path + ":" + to_string(diagnostic) +
            cure_of(diagnostic);
  return text;
}

Program program_in(const std::string& path, const PlanOptions& options) {
  const std::string text = read_file("the schedule", path);
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text[first] == '{') {
    ParsedPlan read = read_plan(text);
    if (!read.plan) throw DataError(faults(path, read.diagnostics));
    return std::move(read.plan->program);
  }
  ParsedProgram read =
      read_csv(text, {.old_letters = options.old_letters, .skip_sharding = options.skip_sharding});
  if (!read.program) throw DataError(faults(path, read.diagnostics));
  read.program->name = path.substr(path.rfind('/') + 1);
  return std::move(*read.program);
}

bool is_path(const std::string& subject) {
  return subject.find_first_of("./") != std::string::npos;
}

/// Throws InvalidArgument when an option says how to read a CSV.
void require_generated(const std::string& subject, const PlanOptions& options) {
  require(!options.old_letters && !options.skip_sharding,
          std::string(options.old_letters ? "--old-letters" : "--skip-sharding") +
              " says how to read a CSV file; schedule '" + subject + "' is generated");
}

/// Whether the stages or ranks may differ.
bool unequal(const PlanOptions& options) {
  const auto several = [](const NumberList& list) { return list.values.size() > 1; };
  return !options.costs_file.empty() || options.rank_speed || several(options.forward) ||
         several(options.input) || several(options.weight) || several(options.memory_forward) ||
         several(options.memory_input) ||
         (options.memory_weight && several(*options.memory_weight));
}

}  // namespace

Program lowered(Program program, Comms comms) {
  if (comms == Comms::None) return program;
  const Program reduced = insert_reductions(program);
  Program result =
      comms == Comms::Early ? insert_messages(reduced) : insert_messages_before_use(reduced);
  result.name = program.name;
  return result;
}

void add_plan_options(CLI::App& verb, PlanOptions& options) {
  add_parameters(verb, options, false);
  add_reading_options(verb, options);
  add_time_options(verb, options);
  add_link_options(verb, options);
  add_timing_options(verb, options);
  add_memory_options(verb, options);
  add_output_options(verb, options);
}

void add_searched_options(CLI::App& verb, PlanOptions& options) {
  add_parameters(verb, options, true);
  add_time_options(verb, options);
  add_link_options(verb, options);
  add_memory_options(verb, options);
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

std::vector<double> memory_limits_of(const PlanOptions& options, int ranks, int stages) {
  std::vector<double> limits;
  const std::string& list = options.memory_limit;
  for (std::size_t from = 0; from < list.size() + (list.empty() ? 0U : 1U);) {
    const std::size_t comma = std::min(list.find(',', from), list.size());
    limits.push_back(limit_in(list.substr(from, comma - from), options, ranks, stages));
    from = comma + 1;
  }
  require(limits.size() <= 1 || limits.size() == static_cast<std::size_t>(ranks),
          "--memory-limit has " + value_count(limits.size()) + "; allowed are 1 or one per rank, " +
              std::to_string(ranks));
  return limits;
}

std::optional<double> memory_limit_of(const PlanOptions& options, int ranks, int stages) {
  const std::vector<double> limits = memory_limits_of(options, ranks, stages);
  if (limits.empty()) return std::nullopt;
  return *std::min_element(limits.begin(), limits.end());
}

ScheduleOptions schedule_options(const ScheduleEntry& entry, const PlanOptions& options) {
  ScheduleOptions schedule = options.schedule;
  schedule.latency = options.latency ? mean(*options.latency) : 0;
  const int own = chunks_of(entry, schedule);
  schedule.memory_limit = memory_limit_of(options, schedule.ranks, schedule.ranks * own);
  const int chunks = options.chunk_costs ? own : 1;
  schedule.forward = mean(options.forward) * chunks;
  schedule.input = mean(options.input) * chunks;
  schedule.weight = mean(options.weight) * chunks;
  schedule.memory_forward = mean(options.memory_forward) * chunks;
  schedule.memory_input = mean(options.memory_input) * chunks;
  schedule.memory_weight = options.memory_weight ? mean(*options.memory_weight) * chunks
                                                 : -schedule.memory_forward - schedule.memory_input;
  return options.costs_file.empty() ? schedule : with_file(schedule, options);
}

std::vector<std::string> untaken_options(const std::string& subject, const PlanOptions& options) {
  std::vector<std::string> untaken;
  if (is_path(subject)) untaken = options.typed_counts;
  const ScheduleEntry none{};
  const ScheduleEntry& entry = is_path(subject) ? none : find_schedule(subject);
  for (const ScheduleParameter& parameter : kScheduleParameters)
    if (const auto value = value_of(options.schedule, parameter);
        value && !entry.takes(parameter.name) &&
        (is_path(subject) || !agrees(entry, options.schedule, parameter.name)))
      untaken.push_back(flag(parameter.name) + " " + *value);
  if (!entry.takes("slices") && !is_path(subject) && options.slice_costs)
    untaken.emplace_back("--slice-costs");
  return untaken;
}

Program program_of(const std::string& subject, const PlanOptions& options) {
  if (is_path(subject)) {
    const auto untaken = untaken_options(subject, options);
    require(untaken.empty(),
            untaken.empty() ? ""
                            : untaken.front() + " was given, but " + subject +
                                  " is a file that says its own counts; leave it out");
    Program program = program_in(subject, options);
    require(!options.slice_costs || program.shape.slices > 1,
            "--slice-costs was given, but the schedule in " + subject + " has no slices");
    return lowered(std::move(program), options.comms);
  }
  const ScheduleEntry& entry = find_schedule(subject);
  ScheduleOptions schedule = schedule_options(entry, options);
  require_generated(subject, options);
  if (!entry.takes("memory_limit")) schedule.memory_limit.reset();
  require(!options.slice_costs || entry.takes("slices"),
          "--slice-costs was given, but schedule '" + subject + "' has no slices");
  if (entry.staged && unequal(options))
    schedule.stage_costs = cost_of({.ranks = schedule.ranks,
                                    .micro_batches = schedule.micro_batches,
                                    .placement = Placement::straight(schedule.ranks)},
                                   options);
  return lowered(generate(subject, schedule), options.comms);
}

Program comparable_program_of(const std::string& subject, const PlanOptions& options) {
  PlanOptions own = options;
  own.typed_counts.clear();
  const ScheduleEntry none{};
  const ScheduleEntry& entry = is_path(subject) ? none : find_schedule(subject);
  for (const ScheduleParameter& parameter : kScheduleParameters)
    if (!entry.takes(parameter.name)) clear_value(own.schedule, parameter);
  if (!entry.takes("slices")) own.slice_costs.reset();
  if (!is_path(subject)) own.old_letters = own.skip_sharding = false;
  return program_of(subject, own);
}

}  // namespace millrace::cli
