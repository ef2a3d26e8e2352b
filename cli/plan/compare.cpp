// millrace compare: schedules against each other, or a simulated timeline against a measured one
// (compare_trace.cpp).
#include <algorithm>
#include <exception>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/files.hpp"
#include "cli/plan/figures.hpp"
#include "cli/plan/progress.hpp"
#include "cli/subcommands.hpp"
#include "cli/vocabulary.hpp"
#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/draw.hpp"
#include "millrace/scheduler/plan/sweep.hpp"

namespace millrace::cli {

namespace {

using Field = ResultField<Report>;

/// The columns of a comparison; `step`: too where it is one of several passes.
std::vector<Field> columns(bool step) {
  std::vector<Field> fields;
  for (const Field& field : result_fields<Report>())
    if (field.is_in(Field::Compare) || (step && field.name == "step")) fields.push_back(field);
  return fields;
}

std::string yes_no(bool holds) {
  return holds ? "yes" : "no";
}

std::vector<std::string> head_of(int passes) {
  std::vector<std::string> cells = {"schedule"};
  for (const Field& field : columns(passes > 1)) cells.emplace_back(field.title);
  cells.emplace_back("same bits");
  return cells;
}

std::vector<std::string> row_of(const std::string& name, const Figures& figures) {
  std::vector<std::string> cells = {name};
  for (const Field& field : columns(figures.passes > 1))
    cells.push_back(
        field.is_in(Field::PerPass) && figures.passes > 1 ? "-" : shown(field, figures.report));
  cells.push_back(yes_no(figures.order.ascending));
  return cells;
}

/// One line of --csv: the counts and metrics, or their names.
std::vector<std::string> csv_cells(const Program& program, const Figures& figures) {
  const Shape& shape = program.shape;
  std::vector<std::string> cells = {program.name};
  for (const int count : {shape.ranks, shape.micro_batches, shape.chunks(), shape.slices})
    cells.push_back(std::to_string(count));
  for (const Field& field : columns(false)) cells.push_back(plain(field.of(figures.report)));
  cells.insert(cells.end(), {yes_no(figures.order.ascending), yes_no(figures.violations.empty())});
  return cells;
}

std::string csv_head() {
  std::vector<std::string> cells = {"name", "p", "m", "v", "q"};
  for (const Field& field : columns(false)) cells.emplace_back(field.name);
  cells.insert(cells.end(), {"same_bits", "valid"});
  return csv_line(cells);
}

/// What stands over a schedule in the picture: "1f1b p=4 m=8: makespan 33, bubble 27.27 %".
std::string panel_title(const Program& program, const Figures& figures) {
  const Report& report = figures.report;
  return program.name + ": makespan " + plain(report.makespan) + ", bubble " +
         percent(report.bubble_makespan_ratio()) + ", peak memory " +
         plain(report.largest(&RankReport::peak_bytes));
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

/// The schedules of a comparison in each form that it is written in. One that cannot be compared is
/// said under the table and stops nothing.
class Comparison {
 public:
  explicit Comparison(const PlanOptions& options) : options_(options) {}

  void add(const std::string& subject, std::vector<std::string> left_out) {
    try {
      if (!compare(subject)) left_out.emplace_back("--gradient-bytes");
      all_[subject]["left_out"] = left_out;
      if (!left_out.empty())
        notes_ += subject + " does not take " + joined(left_out) + ": left out\n";
    } catch (const InvalidArgument& error) {
      if (!refusal_) refusal_ = std::current_exception();
      all_[subject] = {{"refused", spelled(error)}};
      notes_ += subject + " is not compared: " + spelled(error) + '\n';
    }
  }

  /// Refuses gradients that no schedule of the comparison adds.
  void require_gradients_added() const {
    require(options_.costs.gradient_bytes.empty() || adds_gradients_ || refusal_,
            "--gradient-bytes was given, but without -d none of these schedules adds gradients of "
            "several ranks");
  }

  /// Whether all were compared and are valid. Throws what the first was refused with when none was.
  [[nodiscard]] bool whole() const {
    if (rows_.size() == 1 && refusal_) std::rethrow_exception(refusal_);
    return !refusal_ && valid_;
  }

  /// What --csv and --svg asked for.
  [[nodiscard]] std::vector<OutputFile> files() const {
    std::vector<OutputFile> files;
    if (options_.csv) files.push_back({"--csv", *options_.csv, csv_});
    if (options_.svg) files.push_back({"--svg", *options_.svg, draw_svg(panels_)});
    return files;
  }

  void print() const {
    if (options_.json)
      std::cout << all_.dump() << '\n';
    else if (!prints_file(options_))
      std::cout
          << table(rows_) << '\n'
          << units_text(model_costs(options_))
          << "Activations: micro-batches of a full stage. They and memory are of the rank that "
             "holds most.\n"
          << notes_;
  }

 private:
  /// Whether the schedule has a use for --gradient-bytes, where that was given.
  bool compare(const std::string& subject) {
    const Program program = comparable_program_of(subject, options_);
    PlanOptions own = options_;
    own.costs = costs_that_apply(options_.costs, program.shape);
    const bool adds = own.costs.gradient_bytes == options_.costs.gradient_bytes;
    adds_gradients_ = adds_gradients_ || adds;
    const Cost cost = cost_of(program.shape, own);
    const Graph graph(program);
    auto run = simulate(graph, cost);
    if (const auto* stuck = std::get_if<Deadlock>(&run))
      throw InvalidArgument("the schedule cannot proceed: " + stuck->message());
    Timeline& timeline = std::get<Timeline>(run);
    const Figures figures = figures_of(graph, cost, timeline, options_);
    rows_.push_back(row_of(program.name, figures));
    csv_ += csv_line(csv_cells(program, figures));
    all_[subject] = to_json(figures);
    all_[subject].update(identity_json(program));
    if (options_.svg)
      panels_.push_back({{program, std::move(timeline)}, cost, panel_title(program, figures)});
    if (figures.violations.empty()) return adds;
    valid_ = false;
    notes_ += subject + " is not valid: " + to_string(figures.violations.front(), program) + '\n';
    return adds;
  }

  const PlanOptions& options_;
  std::vector<std::vector<std::string>> rows_ = {head_of(options_.costs.accumulate)};
  nlohmann::json all_ = nlohmann::json::object();
  std::string csv_ = csv_head();
  std::vector<Panel> panels_;  // only where a picture is wanted
  std::string notes_;
  bool valid_ = true;
  bool adds_gradients_ = false;
  std::exception_ptr refusal_;
};

void compare_schedules(const std::string& list, const PlanOptions& options) {
  const std::vector<std::string> subjects = split(list);
  require(std::find(subjects.begin(), subjects.end(), "") == subjects.end(),
          "'" + list + "' has an empty name; compare takes schedules as a list, 1f1b,zb-h1");
  std::vector<std::vector<std::string>> untaken;
  for (const std::string& subject : subjects) untaken.push_back(untaken_options(subject, options));
  require_taken(subjects, untaken);
  Comparison comparison(options);
  PlanProgress progress("compare");
  for (std::size_t i = 0; i < subjects.size(); ++i) {
    progress.at(subjects[i] + ", " + std::to_string(i + 1) + " of " +
                std::to_string(subjects.size()));
    comparison.add(subjects[i], untaken[i]);
  }
  comparison.require_gradients_added();
  const std::vector<OutputFile> files = comparison.files();
  progress.end();
  const bool whole = comparison.whole();
  comparison.print();
  write_files(files);
  if (!whole) throw ExitCode{1};
}

void run(const std::vector<std::string>& subjects, const PlanOptions& options) {
  check_outputs(options);
  if (subjects.size() == 2) {
    require(is_path(subjects[1]),
            "compare takes schedules as a list, " + subjects[0] + "," + subjects[1] +
                ", or a plan and the trace file of its run");
    return compare_with_trace(subjects[0], subjects[1], options);
  }
  require(
      !options.html,
      "--html goes with a plan and the trace file of its run; of schedules compare writes --svg "
      "and --csv, and show --html a page of one");
  compare_schedules(subjects.front(), options);
}

}  // namespace

void add_compare(CLI::App& app) {
  CLI::App* subcommand = app.add_subcommand(
      "compare", "Schedules side by side, or a plan's simulation and a measured trace");
  auto subjects = std::make_shared<std::vector<std::string>>();
  auto options = std::make_shared<PlanOptions>();
  subcommand->add_option("schedules", *subjects, "S1,S2,... or PLAN TRACE.json")
      ->required()
      ->expected(1, 2);
  add_compared_options(*subcommand, *options);
  add_json_option(*subcommand, *options);
  subcommand->callback([subjects, options] { run(*subjects, *options); });
}

}  // namespace millrace::cli
