// The program of a training and the partition of its model into stages.
#include "millrace/scheduler/plan/program.hpp"

#include <algorithm>
#include <charconv>
#include <fmt/format.h>
#include <numeric>
#include <sstream>

#include "cli/files.hpp"
#include "cli/train/options.hpp"
#include "cli/train/refusals.hpp"
#include "cli/vocabulary.hpp"
#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/text.hpp"
#include "millrace/stages/partition.hpp"
#include "millrace/training/ranks.hpp"
#include "millrace/training/records.hpp"
#include "millrace/training/trainer.hpp"

namespace millrace::cli {

namespace {

/// Documents have any length, so a slice has no fixed positions.
void check_slices(const TrainFlags& flags, const Shape& shape) {
  if (lengths_of(flags) == Lengths::Fixed || shape.slices == 1) return;
  throw InvalidParameter(fmt::format(
      "--lengths {}: {} cuts samples into {} slices, which need samples of one length; use 1f1b or "
      "another schedule without slices, or --lengths fixed",
      flags.lengths,
      flags.plan.empty() ? "--schedule " + flags.schedule : "--plan " + flags.plan,
      shape.slices));
}

/// A plan file, or a schedule CSV, whose rows and numbers give its shape.
Plan plan_in(const std::string& path) {
  const std::string text = read_file("--plan", path, kPlanLimit);
  const auto reject = [&](const Diagnostic& fault) {
    std::string message = fmt::format("--plan {}:{}", path, to_string(fault));
    if (fault.cure != CsvCure::None)
      message +=
          fmt::format("; millrace show {} {} --plan FILE writes a plan file of it",
                      path,
                      fault.cure == CsvCure::OldLetters ? "--legacy-csv" : "--skip-sharding");
    throw DataError(message);
  };
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos || text[first] == '{') {
    ParsedPlan parsed = read_plan(text);
    if (!parsed.plan) reject(parsed.diagnostics.front());
    return *std::move(parsed.plan);
  }
  ParsedProgram parsed = read_csv(text);
  if (!parsed.program) reject(parsed.diagnostics.front());
  parsed.program->name = path.substr(path.rfind('/') + 1);
  return {std::move(*parsed.program), {}};
}

Plan read_plan_file(const CLI::App& subcommand, const TrainFlags& flags, const ModelSpec& model) {
  for (const char* other : {"schedule", "ranks", "micro_batches", "chunks", "slices"})
    require(subcommand.get_option(flag(other))->count() == 0,
            named(other) + ": the plan says it; leave it out with --plan");
  Plan plan = plan_in(flags.plan);
  const Shape& shape = plan.program.shape;
  const auto positions = std::max<std::int64_t>(1, model.context);
  require(shape.slices <= positions,
          fmt::format("--plan {}: cuts micro-batches into {} slices; samples of --model {} have {} "
                      "position{}",
                      flags.plan,
                      shape.slices,
                      flags.model,
                      positions,
                      positions > 1 ? "s" : ""));
  require(!shape.forward_only, "--plan " + flags.plan + ": is forward-only and cannot train");
  return plan;
}

/// Stages of a rank; some schedules have a fixed number.
std::int64_t chunks_in(const ScheduleEntry& entry, const TrainFlags& flags) {
  const int own = chunks_of(entry, {});
  require(!flags.chunks || entry.takes("chunks") || *flags.chunks == own,
          named("chunks") +
              fmt::format(" {}: schedule {} has {} per rank; chunks go with interleaved and other "
                          "chunked schedules",
                          flags.chunks.value_or(0),
                          flags.schedule,
                          own == 1 ? "one stage" : fmt::format("{} stages", own)));
  return flags.chunks.value_or(own);
}

/// `may_clamp`: -p was not given, so the model bounds it.
std::int64_t ranks_in(const ScheduleEntry& entry,
                      const TrainFlags& flags,
                      const ModelSpec& model,
                      bool may_clamp) {
  const std::int64_t chunks = chunks_in(entry, flags), layers = model.layer_count();
  if (may_clamp) return std::min(flags.ranks, std::max<std::int64_t>(1, layers / chunks));
  require(
      flags.ranks * chunks <= layers,
      named("ranks") + fmt::format(" {}{}: the model has {} layers, so at most {}",
                                   flags.ranks,
                                   chunks > 1 ? fmt::format(" with {} chunks each", chunks) : "",
                                   layers,
                                   layers / chunks));
  return flags.ranks;
}

Program scheduled_program(const TrainFlags& flags, const ModelSpec& model, bool may_clamp) {
  const ScheduleEntry& entry = about("--schedule", flags.schedule, [&]() -> const ScheduleEntry& {
    return find_schedule(flags.schedule);
  });
  require(model.context > 0 || !entry.takes("slices"),
          fmt::format("--schedule {}: cuts sequences into slices, which only a model of text has",
                      flags.schedule));
  require(!flags.slices || entry.takes("slices"),
          named("slices") +
              fmt::format(" {}: schedule {} has no slices; seq-1f1b and others of millrace list do",
                          flags.slices.value_or(0),
                          flags.schedule));
  if (flags.slices)
    require_count(named("slices"), *flags.slices, std::max<std::int64_t>(1, model.context));
  ScheduleOptions options;
  options.ranks = static_cast<int>(ranks_in(entry, flags, model, may_clamp));
  options.micro_batches = static_cast<int>(flags.micro_batches);
  if (flags.chunks) options.chunks = static_cast<int>(*flags.chunks);
  if (flags.slices) options.slices = static_cast<int>(*flags.slices);
  Program program =
      about("--schedule", flags.schedule, [&] { return generate(flags.schedule, options); });
  require(!program.shape.forward_only, "--schedule " + flags.schedule + ": cannot train");
  return program;
}

/// Measured: every layer is a stage of a pipeline that runs some steps.
std::vector<double> layer_seconds(const ModelSpec& model,
                                  const Dataset& data,
                                  std::int64_t micro_batch_size) {
  constexpr int kSteps = 12;
  Trainer trainer(
      model,
      {.schedule = "gpipe", .shape = {.ranks = model.layer_count(), .micro_batches = 1}},
      {.run = {.executor = "sequential"}});
  const std::int64_t rows = std::min(data.size(), micro_batch_size);
  std::vector<std::int32_t> first_rows(static_cast<std::size_t>(rows));
  std::iota(first_rows.begin(), first_rows.end(), 0);
  Batch batch;
  batch.fill(data, first_rows, 1);
  trainer.step(batch);  // the first step pays for memory
  Profile profile(trainer.executor().program());
  for (int i = 0; i < kSteps; ++i) {
    trainer.step(batch);
    profile.add(trainer.executor().timeline());
  }
  const Cost cost =
      profile.cost(trainer.stages(), {.samples = rows, .positions = data.positions()});
  std::vector<double> seconds;
  for (std::size_t i = 0; i < cost.forward.size(); ++i)
    seconds.push_back(cost.forward[i] + cost.backward_input[i] + cost.backward_weight[i]);
  return seconds;
}

std::vector<int> given_boundaries(const TrainFlags& flags, const ModelSpec& model, int stages) {
  std::vector<int> boundaries{0};
  std::istringstream text(flags.partition);
  for (std::string part; std::getline(text, part, ',');) {
    int boundary = 0;
    const auto [rest, error] = std::from_chars(part.data(), part.data() + part.size(), boundary);
    require(
        error == std::errc() && rest == part.data() + part.size(),
        fmt::format("--partition {}: must be even, time or layer numbers B1,B2,...; '{}' is none",
                    flags.partition,
                    part));
    boundaries.push_back(boundary);
  }
  boundaries.push_back(model.layer_count());
  require(static_cast<int>(boundaries.size()) == stages + 1,
          fmt::format("--partition {}: {} stages need {} boundaries, found {}",
                      flags.partition,
                      stages,
                      stages - 1,
                      boundaries.size() - 2));
  about("--partition", flags.partition, [&] { check_boundaries(boundaries, model.layer_count()); });
  return boundaries;
}

std::vector<int> boundaries_of(const TrainJob& job) {
  const TrainFlags& flags = job.flags;
  const int stages = job.program.shape.stages();
  require(stages <= job.model.layer_count(),
          fmt::format("--plan {}: has {} stages, but the model {} layers",
                      flags.plan,
                      stages,
                      job.model.layer_count()));
  if (flags.partition == "even") return even_boundaries(job.model, stages);
  if (flags.partition != "time") return given_boundaries(flags, job.model, stages);
  const std::int64_t rows = job.options.fit.batch_size / job.program.shape.micro_batches /
                            job.options.step.accumulate / flags.data_parallel;
  return balanced_boundaries(job.model, layer_seconds(job.model, job.data.train, rows), stages);
}

/// Stores the pipeline among the facts of checkpoints, for take_settings.
void store_pipeline(bool alone, TrainJob& job) {
  const TrainFlags& flags = job.flags;
  const TrainerOptions& options = job.options;
  const std::vector<int>& bounds = job.boundaries;
  std::string inner;
  for (std::size_t i = 1; i + 1 < bounds.size(); ++i)
    inner += fmt::format("{}{}", i == 1 ? "" : ",", bounds[i]);
  auto& run = job.options.save.run;
  run["data_parallel"] = std::to_string(flags.data_parallel);
  run["partition"] = flags.partition == "even" || inner.empty() ? "even" : inner;
  run["recompute"] = to_string(options.run.recompute);
  run["threads_per_rank"] = std::to_string(options.run.executor_options.threads_per_rank);
  if (alone) run["executor"] = options.run.executor;
  if (options.step.shard_optimizer) run["shard_optimizer"] = "true";
  if (flags.chunks) run["chunks"] = std::to_string(*flags.chunks);
  if (flags.slices) run["slices"] = std::to_string(*flags.slices);
  if (!flags.plan.empty()) run["plan_file"] = flags.plan;
}

}  // namespace

void add_program(const CLI::App& subcommand, bool alone, TrainJob& job) {
  const TrainFlags& flags = job.flags;
  Plan plan;
  if (!flags.plan.empty()) plan = read_plan_file(subcommand, flags, job.model);
  const bool may_clamp = alone && subcommand.get_option(flag("ranks"))->count() == 0;
  job.program =
      flags.plan.empty() ? scheduled_program(flags, job.model, may_clamp) : std::move(plan.program);
  check_slices(flags, job.program.shape);
  set_batch(flags.plan.empty() ? named("micro_batches")
                               : ParameterText("--plan " + flags.plan + ": micro-batches"),
            job);
  check_copies(job.options.step, job.grid());
  job.boundaries = boundaries_of(job);
  if (!plan.boundaries.empty() && subcommand.get_option("--partition")->count() == 0) {
    job.boundaries = std::move(plan.boundaries);
    job.boundaries.insert(job.boundaries.begin(), 0);
    job.boundaries.push_back(job.model.layer_count());
    about("--plan", flags.plan, [&] { check_boundaries(job.boundaries, job.model.layer_count()); });
  }
  store_pipeline(alone, job);
}

}  // namespace millrace::cli
