// The files that plan subcommands write.
#include <algorithm>
#include <vector>

#include "cli/files.hpp"
#include "cli/plan/options.hpp"
#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/draw.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/text.hpp"

namespace millrace::cli {

namespace {

constexpr std::size_t kMostActionsOfOthers = 60'000;  // a page of a few megabytes

// The schedule with the numbers of micro-batches at which schedules change their shape, where they
// have a meaning and costs.
std::vector<Drawing> with_other_counts(const std::string& subject, PlanOptions options) {
  const int p = options.schedule.ranks;
  std::vector<Drawing> others;
  if (subject.empty() || subject.find_first_of("./") != std::string::npos) return others;
  std::size_t actions = 0;
  for (const int count : {1, p / 2, p - 1, p, p + 1, 2 * p - 1, 2 * p, 3 * p, 4 * p, 8 * p}) {
    if (count < 1) continue;
    options.schedule.micro_batches = count;
    try {
      Program program = program_of(subject, options);
      actions += program.size();
      if (actions > kMostActionsOfOthers) break;
      const auto run = simulate(Graph(program), cost_of(program.shape, options));
      if (const auto* timeline = std::get_if<Timeline>(&run))
        others.push_back({std::move(program), *timeline});
    } catch (const InvalidArgument&) {
      continue;  // this count has no meaning for the schedule
    }
  }
  return others;
}

/// PyTorch scales gradients at the REDUCE_GRAD of a stage; it adds those of a file without
/// messages.
std::string csv_of(const PlanOptions& options, const Program& program) {
  if (options.engine) return write_engine_csv(program, *options.engine).csv;
  return write_csv(has_messages(program) ? insert_reductions(program, 2) : program);
}

bool on_standard_output(const std::optional<std::string>& path) {
  return path && (path->empty() || *path == "-");
}

}  // namespace

void check_outputs(const PlanOptions& options) {
  std::vector<std::string> printed;
  if (options.json) printed.emplace_back("--json");
  for (const auto& [option, path] : {std::pair("--csv", &options.csv),
                                     {"--svg", &options.svg},
                                     {"--html", &options.html},
                                     {"--trace", &options.trace},
                                     {"--plan", &options.plan}})
    if (on_standard_output(*path))
      printed.emplace_back(option);
    else if (*path)
      require_writable(option, **path);
  require(printed.size() < 2,
          printed.size() < 2
              ? ""
              : printed[0] + " and " + printed[1] + " would both go to standard output; give " +
                    printed[1] + " a file");
}

bool prints_file(const PlanOptions& options) {
  const auto paths = {&options.csv, &options.svg, &options.html, &options.trace, &options.plan};
  return std::any_of(
      paths.begin(), paths.end(), [](const auto* path) { return on_standard_output(*path); });
}

std::vector<OutputFile> outputs(const PlanOptions& options,
                                const Program& program,
                                const Cost& cost,
                                const Timeline& timeline,
                                const std::string& subject) {
  std::vector<OutputFile> files;
  if (options.csv) files.push_back({"--csv", *options.csv, csv_of(options, program)});
  if (options.svg)
    files.push_back({"--svg", *options.svg, draw_svg(program, timeline, cost, program.name)});
  if (options.html)
    files.push_back(
        {"--html",
         *options.html,
         draw_html(program, timeline, cost, program.name, with_other_counts(subject, options))});
  if (options.trace) files.push_back({"--trace", *options.trace, draw_trace(program, timeline)});
  if (options.plan) files.push_back({"--plan", *options.plan, write_plan({program, {}})});
  return files;
}

}  // namespace millrace::cli
