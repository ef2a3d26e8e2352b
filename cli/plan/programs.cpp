// Which schedule the options mean: one that a generator makes with their counts and costs, or one
// that a file holds.
#include <utility>

#include "cli/files.hpp"
#include "cli/plan/options.hpp"
#include "cli/vocabulary.hpp"
#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/text.hpp"

namespace millrace::cli {

namespace {

/// The flag that reads what the file has.
std::string cure_of(const Diagnostic& diagnostic) {
  if (diagnostic.cure == CsvCure::None) return "";
  return diagnostic.cure == CsvCure::OldLetters ? " (--legacy-csv)" : " (--skip-sharding)";
}

std::string faults(const std::string& path, const std::vector<Diagnostic>& diagnostics) {
  std::string text;
  for (const Diagnostic& diagnostic : diagnostics)
    text += (text.empty() ? "" : "\nmillrace: ") + path + ":" + to_string(diagnostic) +
            cure_of(diagnostic);
  return text;
}

Program program_in(const std::string& path, const PlanOptions& options) {
  const std::string text = read_file("the schedule", path, kPlanLimit);
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

/// The program with the split and the recompute that were asked for, which its name then says.
Program rewritten(Program program, const std::string& subject, const PlanOptions& options) {
  if (options.split) {
    Program split = split_backward(program);
    if (split != program) split.name += " + split";
    program = std::move(split);
  }
  if (options.recompute.empty()) return program;
  const std::string own = describe_recompute(program);
  require(
      own == "none",
      "--recompute was given, but " + subject + " recomputes " + own + " by itself; leave it out");
  const auto stages = parse_recompute_stages(options.recompute, program.shape.stages());
  Program result = insert_recompute(program, stages);
  if (result != program) result.name += " + recompute " + recompute_text(stages);
  return result;
}

/// Whether gradients of several ranks are added, which takes time.
bool adds_gradients(const Program& program, const PlanOptions& options) {
  if (options.costs.data_parallel > 1 || program.shape.replicas() == 1)
    return options.costs.data_parallel > 1;
  return cost_of(program.shape, options).adds_gradients(program.shape);
}

/// Throws InvalidArgument when an option says how to read a CSV.
void require_generated(const std::string& subject, const PlanOptions& options) {
  require(!options.old_letters && !options.skip_sharding,
          std::string(options.old_letters ? "--legacy-csv" : "--skip-sharding") +
              " says how to read a CSV file; schedule '" + subject + "' is generated");
}

}  // namespace

bool is_path(const std::string& subject) {
  return subject.find_first_of("./") != std::string::npos;
}

Program lowered_order(const Program& order, const PlanOptions& options) {
  const bool one = options.costs.data_parallel == 1 && adds_gradients(order, options);
  Program result = one ? insert_late_reductions(order) : order;
  result.name = order.name;
  return lowered(std::move(result), options);
}

Program lowered(Program program, const PlanOptions& options) {
  const Comms comms = options.comms;
  const int copies = options.costs.data_parallel;
  if (comms == Comms::None && !adds_gradients(program, options)) return program;
  Program result = insert_reductions(program, copies);
  if (comms == Comms::Early) result = insert_messages(result);
  if (comms == Comms::BeforeUse) result = insert_messages_before_use(result);
  result.name = program.name;
  if (copies > 1) result.name += ", " + std::to_string(copies) + " copies";
  return result;
}

ScheduleOptions schedule_options(const ScheduleEntry& entry, const PlanOptions& options) {
  ScheduleOptions schedule = options.schedule;
  const int stages = schedule.ranks * chunks_of(entry, schedule);
  schedule.memory_limit = memory_limit_of(options, schedule.ranks, stages);
  return schedule;
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
  if (!entry.takes("slices") && !is_path(subject) && !options.costs.slice_costs.empty())
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
    require(options.costs.slice_costs.empty() || program.shape.slices > 1,
            "--slice-costs was given, but the schedule in " + subject + " has no slices");
    return lowered(rewritten(std::move(program), subject, options), options);
  }
  const ScheduleEntry& entry = find_schedule(subject);
  ScheduleOptions schedule = schedule_options(entry, options);
  require_generated(subject, options);
  if (!entry.takes("memory_limit")) schedule.memory_limit.reset();
  require(options.costs.slice_costs.empty() || entry.takes("slices"),
          "--slice-costs was given, but schedule '" + subject + "' has no slices");
  return lowered(rewritten(generate(subject, schedule, model_costs(options)), subject, options),
                 options);
}

Program comparable_program_of(const std::string& subject, const PlanOptions& options) {
  PlanOptions own = options;
  own.typed_counts.clear();
  const ScheduleEntry none{};
  const ScheduleEntry& entry = is_path(subject) ? none : find_schedule(subject);
  for (const ScheduleParameter& parameter : kScheduleParameters)
    if (!entry.takes(parameter.name)) clear_value(own.schedule, parameter);
  if (!entry.takes("slices")) own.costs.slice_costs.clear();
  if (!is_path(subject)) own.old_letters = own.skip_sharding = false;
  return program_of(subject, own);
}

}  // namespace millrace::cli
