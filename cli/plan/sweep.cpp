// millrace sweep: a table of schedules by counts, costs and limits, for plots and for planning.
#include "millrace/scheduler/plan/sweep.hpp"

#include <algorithm>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <unistd.h>

#include "cli/files.hpp"
#include "cli/numbers.hpp"
#include "cli/plan/options.hpp"
#include "cli/plan/progress.hpp"
#include "cli/verbs.hpp"
#include "cli/vocabulary.hpp"
#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"

namespace millrace::cli {

namespace {

using Text = const std::string&;

struct SweepArguments {
  std::string schedules;
  SweepSpace space;
  std::optional<std::vector<SweepCosts>> times;
  std::vector<std::string> files;  // of costs
  std::optional<std::vector<double>> latencies;
  std::vector<int> passes = {1};
  std::optional<double> memory_forward, memory_input, memory_weight;
  std::optional<double> bandwidth, gradient_bytes;
  int threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  bool json = false;
  std::optional<std::string> out;
};

std::vector<std::string> parts_of(Text option, Text list, char separator) {
  std::vector<std::string> parts;
  for (std::size_t from = 0; from <= list.size();) {
    const std::size_t end = std::min(list.find(separator, from), list.size());
    parts.push_back(list.substr(from, end - from));
    require(!parts.back().empty(),
            option + " is '" + list + "'; expected entries with one '" + separator + "' between");
    from = end + 1;
  }
  return parts;
}

/// "4,8,16" or "2..5", or both: "1,4..6".
std::vector<int> counts_of(Text option, Text list) {
  constexpr std::int64_t most = 1'000'000;
  std::vector<int> counts;
  for (const std::string& part : parts_of(option, list, ',')) {
    const std::size_t dots = part.find("..");
    const std::int64_t first = whole_number(option, part.substr(0, dots), 1, most);
    const std::int64_t last = dots == std::string::npos
                                  ? first
                                  : whole_number(option, part.substr(dots + 2), first, most);
    for (std::int64_t count = first; count <= last; ++count)
      counts.push_back(static_cast<int>(count));
  }
  return counts;
}

/// "1:1:1,2:2:1": F, I and W.
std::vector<SweepCosts> times_of(Text list) {
  std::vector<SweepCosts> all;
  for (const std::string& part : parts_of("--times", list, ',')) {
    const std::vector<std::string> times = parts_of("--times", part, ':');
    require(times.size() == 3, "--times " + part + ": must be F:I:W, such as 1:1:1");
    SweepCosts costs;
    costs.forward = decimal("--times", times[0], 0);
    costs.input = decimal("--times", times[1], 0);
    costs.weight = decimal("--times", times[2], 0);
    all.push_back(costs);
  }
  return all;
}

/// "none,1p,6".
std::vector<std::optional<SweepLimit>> limits_of(Text list) {
  std::vector<std::optional<SweepLimit>> limits;
  for (std::string part : parts_of("--memory-limit", list, ',')) {
    if (part == "none") {
      limits.emplace_back();
      continue;
    }
    const bool times_ranks = part.back() == 'p';
    if (times_ranks) part.pop_back();
    limits.push_back(SweepLimit{decimal("--memory-limit", part, 0), times_ranks});
  }
  return limits;
}

/// The schedules as typed; `all` is the catalogue.
std::vector<std::string> names_of(Text list) {
  if (list != "all") return parts_of("the list of schedules", list, ',');
  std::vector<std::string> names;
  for (const ScheduleEntry& entry : schedules()) names.emplace_back(entry.name);
  return names;
}

SweepCosts filed_costs(const std::string& path, const SweepArguments& arguments) {
  require(!arguments.times,
          "--times was given, but --costs " + path + " says it; leave one of them out");
  PlanOptions options;
  options.costs_file = path;
  const auto set = [](std::vector<double>& list, const std::optional<double>& value) {
    if (value) list = {*value};
  };
  set(options.costs.memory_forward, arguments.memory_forward);
  set(options.costs.memory_input, arguments.memory_input);
  set(options.costs.memory_weight, arguments.memory_weight);
  const ModelCosts costs = model_costs(options);
  const auto& limits = arguments.space.limits;
  if (std::any_of(limits.begin(), limits.end(), [](const auto& limit) { return limit; }))
    require_memory(costs);
  return sweep_costs(*costs.file, path);
}

/// Memory as typed, where no file says it.
void set_memory(SweepCosts& costs, const SweepArguments& arguments) {
  if (costs.file && !costs.file->cost.memory_forward.empty()) return;
  costs.memory_forward = arguments.memory_forward.value_or(1);
  costs.memory_input = arguments.memory_input.value_or(0);
  costs.memory_weight =
      arguments.memory_weight.value_or(-costs.memory_forward - costs.memory_input);
}

/// What copies of the pipeline add over which links, as typed.
void set_sums(SweepCosts& costs, const SweepArguments& arguments) {
  const bool filed = costs.file && !costs.file->cost.gradient_bytes.empty();
  require(!filed || !arguments.gradient_bytes,
          "--gradient-bytes was given, but --costs " + costs.file_name +
              " says it; leave one of them out");
  if (arguments.gradient_bytes) costs.gradient_bytes = *arguments.gradient_bytes;
  if (arguments.bandwidth) costs.bandwidth = *arguments.bandwidth;
}

/// The space with the costs: those typed or of each file, with every latency and the memory.
SweepSpace space_of(const SweepArguments& arguments) {
  SweepSpace space = arguments.space;
  space.schedules = names_of(arguments.schedules);
  for (const std::string& name : space.schedules)
    if (is_path(name))
      space.plans[name] = std::make_shared<const Program>(program_of(name, PlanOptions{}));
  std::vector<SweepCosts> all;
  for (const std::string& path : arguments.files) all.push_back(filed_costs(path, arguments));
  if (all.empty()) all = arguments.times.value_or(std::vector<SweepCosts>(1));
  space.costs.clear();
  for (SweepCosts& costs : all) {
    set_memory(costs, arguments);
    set_sums(costs, arguments);
    for (const double latency : arguments.latencies.value_or(std::vector{costs.latency}))
      for (const int passes : arguments.passes) {
        costs.latency = latency;
        costs.accumulate = passes;
        space.costs.push_back(costs);
      }
  }
  return space;
}

/// Rows that scroll by on a terminal say themselves how far the sweep is.
bool scrolls(const SweepArguments& arguments) {
  return !arguments.out && ::isatty(STDOUT_FILENO) != 0;
}

void run(const SweepArguments& arguments) {
  if (arguments.out) require_writable("--out", *arguments.out);
  const SweepSpace space = space_of(arguments);
  const std::vector<SweepPoint> points = sweep_points(space);
  const std::string rows = std::to_string(points.size());
  std::optional<PlanProgress> progress;
  if (!scrolls(arguments)) progress.emplace("sweep");
  std::string text = arguments.json ? "" : sweep_csv_head();
  std::size_t done = 0, meaningless = 0;
  std::set<std::string> told_of;  // files whose assumptions were printed
  sweep(points, arguments.threads, [&](const SweepRow& row) {
    text += arguments.json ? sweep_json(row) : sweep_csv(row);
    meaningless += row.report ? 0U : 1U;
    if (progress) progress->at(std::to_string(++done) + " of " + rows + " rows");
    if (arguments.out) return;
    std::cout << text << std::flush;
    text.clear();
  });
  if (progress) progress->end();
  for (const SweepCosts& costs : space.costs)
    if (costs.file && !costs.file->assumed.empty() && told_of.insert(costs.file_name).second)
      std::cerr << "millrace: " << costs.file_name << " assumes: " << costs.file->assumed << '\n';
  if (meaningless > 0)
    std::cerr << "millrace: " << meaningless << " of " << rows
              << " combinations have no meaning; the column reason says why\n";
  write_files({{"--out", arguments.out.value_or("-"), text}});
}

void add_counts(CLI::App& verb,
                const std::string& name,
                std::vector<int>& counts,
                const char* what) {
  verb.add_option_function<std::string>(
          name,
          [option = name.substr(0, name.find(',')), &counts](Text text) {
            counts = counts_of(option, text);
          },
          what)
      ->type_name("LIST");
}

void add_number(CLI::App& verb,
                const char* name,
                const char* what,
                std::function<void(double)> set,
                double least = -1e15) {
  verb.add_option_function<std::string>(
          name,
          [name, least, set = std::move(set)](Text text) { set(decimal(name, text, least)); },
          what)
      ->type_name("NUMBER");
}

void add_copies_options(CLI::App& verb, SweepArguments& arguments) {
  add_number(
      verb,
      "--gradient-bytes",
      "Bytes of the gradients of a full stage, which copies of the pipeline and of its stages add "
      "(default 0)",
      [&arguments](double value) { arguments.gradient_bytes = value; },
      0);
  add_number(
      verb,
      "--bandwidth",
      "Bytes per unit of time of the links that they go over (default 0: unlimited)",
      [&arguments](double value) { arguments.bandwidth = value; },
      0);
}

void add_cost_options(CLI::App& verb, SweepArguments& arguments) {
  verb.add_option_function<std::string>(
          "--times",
          [&arguments](Text text) { arguments.times = times_of(text); },
          "Times of F, I and W of a full stage, several: 1:1:1,2:2:1 (default 1:1:1)")
      ->type_name("F:I:W,...");
  verb.add_option_function<std::string>(
          "--costs",
          [&arguments](Text text) { arguments.files = parts_of("--costs", text, ','); },
          "Costs from files that train --profile wrote, several: a.json,b.json")
      ->type_name("FILE,...");
  verb.add_option_function<std::string>(
          "--latency",
          [&arguments](Text text) { arguments.latencies = number_list("--latency", text, 0); },
          "Times of a message between ranks: 0,0.1,0.5 (default 0, or what --costs says)")
      ->type_name("LIST");
  add_number(
      verb, "--mem-f", "Change of memory at F of a full stage (default 1)", [&](double value) {
        arguments.memory_forward = value;
      });
  add_number(verb, "--mem-i", "Change at the end of I (default 0)", [&](double value) {
    arguments.memory_input = value;
  });
  add_number(verb,
             "--mem-w",
             "Change at the end of W (default: gives back all of --mem-f and --mem-i)",
             [&](double value) { arguments.memory_weight = value; });
  verb.add_option_function<std::string>(
          "--memory-limit",
          [&arguments](Text text) { arguments.space.limits = limits_of(text); },
          "Limits per rank: numbers, with suffix p: x p x mem-f, or none: none,1p,6 (default none)")
      ->type_name("LIST");
}

}  // namespace

void add_sweep(CLI::App& app) {
  CLI::App* verb = app.add_subcommand(
      "sweep", "A table of schedules by counts, costs and limits, as CSV or JSON lines");
  auto arguments = std::make_shared<SweepArguments>();
  verb->footer(
      "Counts are lists and ranges: -p 4,8 -m 4..16. A combination without meaning is a row with\n"
      "its reason. A plan file has its own counts and is one row for all of these. The rows stand "
      "in the same order whatever the number of threads.");
  verb->add_option("schedules",
                   arguments->schedules,
                   "S1,S2,... (names or plan files), or all (millrace list)")
      ->required();
  add_counts(*verb, flags("ranks"), arguments->space.ranks, "Ranks (default 4)");
  add_counts(
      *verb, flags("micro_batches"), arguments->space.micro_batches, "Micro-batches (default 8)");
  add_counts(
      *verb, flags("chunks"), arguments->space.chunks, "Chunks per rank, of chunked schedules");
  add_counts(*verb,
             flags("slices"),
             arguments->space.slices,
             "Slices per micro-batch, of sliced schedules");
  add_counts(*verb,
             flags("data_parallel"),
             arguments->space.data_parallel,
             "Copies of the pipeline (default 1)");
  add_counts(
      *verb,
      flag("accumulate"),
      arguments->passes,
      "Passes of m micro-batches in one step; copies add gradients after the last (default 1)");
  add_cost_options(*verb, *arguments);
  add_copies_options(*verb, *arguments);
  verb->add_option_function<std::string>(
      "--threads",
      [arguments](Text text) {
        arguments->threads = static_cast<int>(whole_number("--threads", text, 1, 1024));
      },
      "Threads (default: one per core)");
  verb->add_flag("--json", arguments->json, "JSON lines instead of CSV");
  verb->add_option_function<std::string>(
          "--out", [arguments](Text text) { arguments->out = text; }, "Write the table to a file")
      ->type_name("FILE");
  verb->callback([arguments] { run(*arguments); });
}

}  // namespace millrace::cli
