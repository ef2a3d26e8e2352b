// millrace compare: schedules against each other, or a simulated timeline against a measured one
// (compare_trace.cpp).
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/plan/compare_trace.hpp"
#include "cli/plan/figures.hpp"
#include "cli/plan/progress.hpp"
#include "cli/verbs.hpp"
#include "millrace/core/error.hpp"

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

void compare_schedules(const std::string& list, const PlanOptions& options) {
  const std::vector<std::string> subjects = split(list);
  require(std::find(subjects.begin(), subjects.end(), "") == subjects.end(),
          "'" + list + "' has an empty name; compare takes schedules as a list, 1f1b,zb-h1");
  std::vector<std::vector<std::string>> untaken;
  for (const std::string& subject : subjects) untaken.push_back(untaken_options(subject, options));
  require_taken(subjects, untaken);
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
  std::string notes;
  PlanProgress progress("compare");
  for (std::size_t i = 0; i < subjects.size(); ++i) {
    progress.at(subjects[i] + ", " + std::to_string(i + 1) + " of " +
                std::to_string(subjects.size()));
    const Program program = comparable_program_of(subjects[i], options);
    const Cost cost = cost_of(program.shape, options);
    const Graph graph(program);
    const Figures figures = figures_of(graph, cost, timeline_of(graph, cost), options);
    rows.push_back(row_of(program.name, figures));
    all[subjects[i]] = to_json(figures);
    all[subjects[i]].update(identity_json(program));
    all[subjects[i]]["left_out"] = untaken[i];
    if (!untaken[i].empty())
      notes += subjects[i] + " does not take " + joined(untaken[i]) + ": left out\n";
  }
  progress.end();
  if (options.json)
    std::cout << all.dump() << '\n';
  else
    std::cout << table(rows) << (notes.empty() ? "" : "\n") << notes;
}

void run(const std::vector<std::string>& subjects, const PlanOptions& options) {
  check_outputs(options);
  if (subjects.size() == 2) {
    require(subjects[1].find_first_of("./") != std::string::npos,
            "compare takes schedules as a list, " + subjects[0] + "," + subjects[1] +
                ", or a plan and the trace file of its run");
    return compare_with_trace(subjects[0], subjects[1], options);
  }
  for (const auto& [option, path] : {std::pair("--csv", &options.csv),
                                     {"--svg", &options.svg},
                                     {"--html", &options.html},
                                     {"--trace", &options.trace},
                                     {"--plan", &options.plan}})
    require(!*path, std::string(option) + " is of one schedule; compare writes none");
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
