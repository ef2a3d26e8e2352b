// millrace sweep: a table of schedules by counts, costs and limits, for plots and for planning.
#include "millrace/scheduler/plan/sweep.hpp"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <unistd.h>

#include "cli/files.hpp"
#include "cli/numbers.hpp"
#include "cli/plan/figures.hpp"
#include "cli/plan/options.hpp"
#include "cli/plan/progress.hpp"
#include "cli/subcommands.hpp"
#include "cli/vocabulary.hpp"
#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"

namespace millrace::cli {

namespace {

using Text = const std::string&;

struct SweepArguments {
  std::string schedules;
  SweepSpace space;
  std::optional<std::vector<Costs>> times;
  std::vector<std::string> files;  // of costs
  std::optional<std::vector<double>> latencies;
  std::vector<int> passes = {1};
  Costs costs;  // all others
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
std::vector<Costs> times_of(Text list) {
  std::vector<Costs> all;
  for (const std::string& part : parts_of("--times", list, ',')) {
    const std::vector<std::string> times = parts_of("--times", part, ':');
    require(times.size() == 3, "--times " + part + ": must be F:I:W, such as 1:1:1");
    all.push_back({.forward = {decimal("--times", times[0], 0)},
                   .input = {decimal("--times", times[1], 0)},
                   .weight = {decimal("--times", times[2], 0)}});
  }
  return all;
}

/// "none,1p,6".
std::vector<std::optional<MemoryLimit>> limits_of(Text list) {
  std::vector<std::optional<MemoryLimit>> limits;
  for (const std::string& part : parts_of("--memory-limit", list, ','))
    limits.push_back(part == "none" ? std::nullopt : std::optional(parse_memory_limit(part)));
  return limits;
}

/// The schedules as typed; `all` is the catalogue.
std::vector<std::string> names_of(Text list) {
  if (list != "all") return parts_of("the list of schedules", list, ',');
  std::vector<std::string> names;
  for (const ScheduleEntry& entry : schedules()) names.emplace_back(entry.name);
  return names;
}

/// One set of costs per file, or per entry of --times.
std::vector<Costs> sets_of(const SweepArguments& arguments) {
  std::vector<Costs> all;
  for (const std::string& path : arguments.files) {
    require(!arguments.times,
            "--times was given, but --costs " + path + " has them too; leave one of them out");
    all.push_back(over(costs_in("--costs", path), path, arguments.costs));
  }
  if (!all.empty()) return all;
  for (const Costs& times : arguments.times.value_or(std::vector<Costs>(1))) {
    all.push_back(arguments.costs);
    all.back().forward = times.forward;
    all.back().input = times.input;
    all.back().weight = times.weight;
  }
  return all;
}

/// The space with the costs: those typed or of each file, with every latency and the memory.
SweepSpace space_of(const SweepArguments& arguments) {
  SweepSpace space = arguments.space;
  space.schedules = names_of(arguments.schedules);
  for (const std::string& name : space.schedules)
    if (is_path(name))
      space.plans[name] = std::make_shared<const Program>(program_of(name, PlanOptions{}));
  space.costs.clear();
  for (Costs& costs : sets_of(arguments))
    for (const double latency : arguments.latencies.value_or(std::vector{-1.0}))
      for (const int passes : arguments.passes) {
        if (arguments.latencies) costs.latency = {latency};
        costs.accumulate = passes;
        space.costs.push_back(costs);
      }
  return space;
}

/// Whether rows scroll by on a terminal. They are a table there; files and pipes get CSV.
bool scrolls(const SweepArguments& arguments) {
  return !arguments.out && ::isatty(STDOUT_FILENO) != 0;
}

template <class Count, class Cell>
std::string shown_line(std::string_view name, const std::array<Count, 5>& counts, Cell&& cell) {
  const auto& [p, m, v, q, d] = counts;
  std::string line = fmt::format("{:<20}{:>4}{:>5}{:>3}{:>3}{:>4}", name, p, m, v, q, d);
  for (const auto& field : result_fields<Report>())
    if (field.is_in(ResultField<Report>::Compare))
      line += fmt::format(" {:>{}}", cell(field), std::max<std::size_t>(field.title.size(), 8));
  return line + '\n';
}

std::string shown_head() {
  return shown_line("schedule", std::array{"p", "m", "v", "q", "d"}, [](const auto& field) {
    return std::string(field.title);
  });
}

std::string shown_row(const SweepRow& row) {
  const SweepPoint& point = row.point;
  if (!row.report) return fmt::format("{}: {}\n", point.schedule, row.reason);
  const std::array counts = {point.ranks,
                             point.micro_batches,
                             point.chunks.value_or(1),
                             point.slices.value_or(1),
                             point.costs.data_parallel};
  return shown_line(point.schedule, counts, [&](const auto& field) {
    const bool none = field.is_in(ResultField<Report>::PerPass) && point.costs.accumulate > 1;
    return none ? "-" : shown(field, *row.report);
  });
}

void run(const SweepArguments& arguments) {
  if (arguments.out) require_writable("--out", *arguments.out);
  const SweepSpace space = space_of(arguments);
  const std::vector<SweepPoint> points = sweep_points(space);
  const std::string rows = std::to_string(points.size());
  std::optional<PlanProgress> progress;
  const bool table = scrolls(arguments) && !arguments.json;
  if (!scrolls(arguments)) progress.emplace("sweep");
  std::string text = arguments.json ? "" : table ? shown_head() : sweep_csv_head();
  std::size_t done = 0, meaningless = 0;
  std::set<std::string> told_of;  // files whose assumptions were printed
  sweep(points, arguments.threads, [&](const SweepRow& row) {
    text += arguments.json ? sweep_json(row) : table ? shown_row(row) : sweep_csv(row);
    meaningless += row.report ? 0U : 1U;
    if (progress) progress->at(std::to_string(++done) + " of " + rows + " rows");
    if (arguments.out) return;
    std::cout << text << std::flush;
    text.clear();
  });
  if (progress) progress->end();
  for (const Costs& costs : space.costs)
    if (costs.file && !costs.file->assumed.empty() && told_of.insert(costs.file_name).second)
      std::cerr << "millrace: " << costs.file_name << " assumes: " << costs.file->assumed << '\n';
  if (meaningless > 0)
    std::cerr << "millrace: " << meaningless << " of " << rows
              << " combinations have no meaning; the column reason says why\n";
  write_files({{"--out", arguments.out.value_or("-"), text}});
}

void add_counts(CLI::App& subcommand,
                const std::string& name,
                std::vector<int>& counts,
                const char* what) {
  subcommand
      .add_option_function<std::string>(
          name,
          [option = name.substr(0, name.find(',')), &counts](Text text) {
            counts = counts_of(option, text);
          },
          what)
      ->type_name("LIST");
}

void add_varied_costs(CLI::App& subcommand, SweepArguments& arguments) {
  subcommand
      .add_option_function<std::string>(
          "--times",
          [&arguments](Text text) { arguments.times = times_of(text); },
          "Times of F, I and W of a full stage, several: 1:1:1,2:2:1 (default 1:1:1)")
      ->type_name("F:I:W,...");
  subcommand
      .add_option_function<std::string>(
          "--costs",
          [&arguments](Text text) { arguments.files = parts_of("--costs", text, ','); },
          "Costs from files that train --profile wrote, several: a.json,b.json")
      ->type_name("FILE,...");
  subcommand
      .add_option_function<std::string>(
          "--latency",
          [&arguments](Text text) { arguments.latencies = number_list("--latency", text, 0); },
          "Times of a message between ranks: 0,0.1,0.5 (default 0, or what --costs says)")
      ->type_name("LIST");
  subcommand
      .add_option_function<std::string>(
          "--memory-limit",
          [&arguments](Text text) { arguments.space.limits = limits_of(text); },
          "Limits per rank: numbers, with suffix p: x p x mem-f, or none: none,1p,6 (default none)")
      ->type_name("LIST");
}

}  // namespace

void add_sweep(CLI::App& app) {
  CLI::App* subcommand = app.add_subcommand(
      "sweep", "A table of schedules by counts, costs and limits, as CSV or JSON lines");
  auto arguments = std::make_shared<SweepArguments>();
  subcommand->footer(
      "Counts are lists and ranges: -p 4,8 -m 4..16. A combination without meaning is a row with\n"
      "its reason. A plan file has its own counts and is one row for all of these. The rows stand "
      "in the same order for any number of threads.");
  subcommand
      ->add_option("schedules",
                   arguments->schedules,
                   "S1,S2,... (names or plan files), or all (millrace list)")
      ->required();
  add_counts(*subcommand, flags("ranks"), arguments->space.ranks, "Ranks (default 4)");
  add_counts(*subcommand,
             flags("micro_batches"),
             arguments->space.micro_batches,
             "Micro-batches (default 8)");
  add_counts(*subcommand,
             flags("chunks"),
             arguments->space.chunks,
             "Chunks per rank, of chunked schedules");
  add_counts(*subcommand,
             flags("slices"),
             arguments->space.slices,
             "Slices per micro-batch, of sliced schedules");
  add_counts(*subcommand,
             flags("data_parallel"),
             arguments->space.data_parallel,
             "Data-parallel replicas (default 1)");
  add_counts(
      *subcommand,
      flag("accumulate"),
      arguments->passes,
      "Passes of m micro-batches in one step; copies add gradients after the last (default 1)");
  add_varied_costs(*subcommand, *arguments);
  constexpr std::array varied = {
      "forward", "input", "weight", "latency", "data_parallel", "accumulate"};
  add_cost_options(*subcommand, arguments->costs, [&varied](const CostMember& row) {
    return std::ranges::find(varied, row.name) == varied.end();
  });
  subcommand->add_option_function<std::string>(
      "--threads",
      [arguments](Text text) {
        arguments->threads = static_cast<int>(whole_number("--threads", text, 1, 1024));
      },
      "Threads (default: one per core)");
  subcommand->add_flag("--json", arguments->json, "JSON lines instead of CSV");
  subcommand
      ->add_option_function<std::string>(
          "--out", [arguments](Text text) { arguments->out = text; }, "Write the table to a file")
      ->type_name("FILE");
  subcommand->callback([arguments] { run(*arguments); });
}

}  // namespace millrace::cli
