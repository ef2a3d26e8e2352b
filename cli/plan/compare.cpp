// millrace compare: schedules against each other, or a simulated timeline against a measured one
// (compare_trace.cpp).
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/files.hpp"
#include "cli/plan/compare_trace.hpp"
#include "cli/plan/figures.hpp"
#include "cli/plan/progress.hpp"
#include "cli/verbs.hpp"
#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/draw.hpp"
#include "millrace/scheduler/plan/sweep.hpp"

namespace millrace::cli {

namespace {

std::vector<std::string> row_of(const std::string& name, const Figures& figures) {
  const Report& report = figures.report;
  return {name,
          plain(report.makespan),
          plain(report.bubble_makespan),
          percent(report.bubble_makespan_ratio()),
          plain(report.span),
          plain(report.bubble_span),
          percent(report.bubble_span_ratio()),
          plain(largest(report, &RankReport::peak_activation)),
          plain(largest(report, &RankReport::peak_bytes)),
          figures.order.ascending ? "yes" : "no",
          figures.violations.empty() ? "yes" : "no"};
}

/// One line of --csv: the counts and figures, or their names.
std::vector<std::string> csv_cells(const Program& program, const Figures& figures) {
  const Report& report = figures.report;
  const Shape& shape = program.shape;
  std::vector<std::string> cells = {program.name};
  for (const int count : {shape.ranks, shape.micro_batches, shape.chunks(), shape.slices})
    cells.push_back(std::to_string(count));
  for (const double figure : {report.makespan,
                              report.bubble_makespan_ratio(),
                              report.span,
                              report.bubble_span_ratio(),
                              largest(report, &RankReport::peak_activation),
                              largest(report, &RankReport::peak_bytes)})
    cells.push_back(plain(figure));
  for (const bool holds : {figures.order.ascending, figures.violations.empty()})
    cells.emplace_back(holds ? "yes" : "no");
  return cells;
}

std::string csv_head() {
  return csv_line({"name",
                   "p",
                   "m",
                   "v",
                   "q",
                   "makespan",
                   "bubble_makespan_ratio",
                   "span",
                   "bubble_span_ratio",
                   "peak_activation",
                   "peak_memory",
                   "same_bits",
                   "valid"});
}

/// What stands over a schedule in the picture: "1f1b p=4 m=8: makespan 33, bubble 27.27 %".
std::string panel_title(const Program& program, const Figures& figures) {
  const Report& report = figures.report;
  return program.name + ": makespan " + plain(report.makespan) + ", bubble " +
         percent(report.bubble_makespan_ratio()) + ", peak memory " +
         plain(largest(report, &RankReport::peak_bytes));
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::size_t from = 0;
  while (from <= list.size()) {
    const std::size_t comma = std::min(list.find(',', from), list.size());
    parts.push_back(list.substr(from, comma - from));
    from = comma + 1;
  }
  return parts;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

/// Refuses an option that no schedule of the comparison takes.
void require_taken(const std::vector<std::string>& subjects,
                   const std::vector<std::vector<std::string>>& untaken) {
  for (const std::string& option : untaken.front()) {
    const bool taken = std::any_of(untaken.begin(), untaken.end(), [&](const auto& left_out) {
      return std::find(left_out.begin(), left_out.end(), option) == left_out.end();
    });
    require(taken, option + " was given, but none of " + joined(subjects) + " takes it");
  }
}

/// The schedules of a comparison in each form that it is written in.
struct Comparison {
  std::vector<std::vector<std::string>> rows = {{"schedule",
                                                 "makespan",
                                                 "bubble",
                                                 "",
                                                 "span",
                                                 "bubble",
                                                 "",
                                                 "peak activation",
                                                 "peak memory",
                                                 "same bits",
                                                 "valid"}};
  nlohmann::json all = nlohmann::json::object();
  std::string csv = csv_head();
  std::vector<Panel> panels;  ///< only where a picture is wanted
  std::string notes;
};

void add_schedule(Comparison& comparison,
                  const std::string& subject,
                  const std::vector<std::string>& left_out,
                  const PlanOptions& options) {
  const Program program = comparable_program_of(subject, options);
  const Cost cost = cost_of(program.shape, options);
  const Graph graph(program);
  Timeline timeline = timeline_of(graph, cost);
  const Figures figures = figures_of(graph, cost, timeline, options);
  comparison.rows.push_back(row_of(program.name, figures));
  comparison.csv += csv_line(csv_cells(program, figures));
  nlohmann::json& one = comparison.all[subject] = to_json(figures);
  one.update(identity_json(program));
  one["left_out"] = left_out;
  if (!left_out.empty())
    comparison.notes += subject + " does not take " + joined(left_out) + ": left out\n";
  if (options.svg)
    comparison.panels.push_back(
        {{program, std::move(timeline)}, cost, panel_title(program, figures)});
}

void compare_schedules(const std::string& list, const PlanOptions& options) {
  const std::vector<std::string> subjects = split(list);
  require(std::find(subjects.begin(), subjects.end(), "") == subjects.end(),
          "'" + list + "' has an empty name; compare takes schedules as a list, 1f1b,zb-h1");
  std::vector<std::vector<std::string>> untaken;
  for (const std::string& subject : subjects) untaken.push_back(untaken_options(subject, options));
  require_taken(subjects, untaken);
  Comparison result;
  PlanProgress progress("compare");
  for (std::size_t i = 0; i < subjects.size(); ++i) {
    progress.at(subjects[i] + ", " + std::to_string(i + 1) + " of " +
                std::to_string(subjects.size()));
    add_schedule(result, subjects[i], untaken[i], options);
  }
  std::vector<OutputFile> files;
  if (options.csv) files.push_back({"--csv", *options.csv, result.csv});
  if (options.svg) files.push_back({"--svg", *options.svg, draw_svg(result.panels)});
  progress.end();
  if (options.json)
    std::cout << result.all.dump() << '\n';
  else if (!prints_file(options))
    std::cout << table(result.rows) << (result.notes.empty() ? "" : "\n") << result.notes;
  write_files(files);
}

void run(const std::vector<std::string>& subjects, const PlanOptions& options) {
  check_outputs(options);
  if (subjects.size() == 2) {
    require(subjects[1].find_first_of("./") != std::string::npos,
            "compare takes schedules as a list, " + subjects[0] + "," + subjects[1] +
                ", or a plan and the trace file of its run");
    return compare_with_trace(subjects[0], subjects[1], options);
  }
  for (const auto& [option, path] :
       {std::pair("--html", &options.html), {"--trace", &options.trace}, {"--plan", &options.plan}})
    require(!*path,
            std::string(option) + " is of one schedule; compare writes --csv, a table, and --svg");
  compare_schedules(subjects.front(), options);
}

}  // namespace

void add_compare(CLI::App& app) {
  CLI::App* verb = app.add_subcommand(
      "compare", "Schedules side by side, or a plan's simulation and a measured trace");
  auto subjects = std::make_shared<std::vector<std::string>>();
  auto options = std::make_shared<PlanOptions>();
  verb->add_option("schedules", *subjects, "S1,S2,... or PLAN TRACE.json")
      ->required()
      ->expected(1, 2);
  add_plan_options(*verb, *options);
  add_json_option(*verb, *options);
  verb->callback([subjects, options] { run(*subjects, *options); });
}

}  // namespace millrace::cli
