// From flags to a job: each check refuses in one sentence.
#include "cli/train/options.hpp"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "cli/files.hpp"
#include "cli/generate/sample.hpp"
#include "cli/numbers.hpp"
#include "cli/train/feature_divisor.hpp"
#include "cli/train/layer_times.hpp"
#include "cli/train/refusals.hpp"
#include "cli/vocabulary.hpp"
#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/text.hpp"
#include "millrace/scheduler/run/executor.hpp"
#include "millrace/stages/layer.hpp"
#include "millrace/stages/partition.hpp"
#include "millrace/training/rank_parts.hpp"

namespace millrace::cli {

namespace {

void check_numbers(const TrainFlags& flags) {
  constexpr std::int64_t kMostUnits = 1'000'000;
  require_count(named("data_parallel"), flags.data_parallel, 4096);
  require_count(named("ranks"), flags.ranks, 4096);
  require_count(named("micro_batches"), flags.micro_batches, kMostUnits);
  require_count("--threads-per-rank", flags.threads_per_rank, 1024);
  check_batch(flags.batch);
  check_rule(flags.rule);
  check_watch(flags.watch);
  if (flags.chunks) require_count(named("chunks"), *flags.chunks, 4096);
  if (flags.epochs) require_count("--epochs", *flags.epochs);
  if (flags.steps) require_count("--steps", *flags.steps);
  require(!flags.epochs || !flags.steps, "--epochs and --steps: give one of them");
  require(flags.seed >= 0, "--seed " + std::to_string(flags.seed) + ": must be at least 0");
  if (flags.dropout) require_between("--dropout", *flags.dropout, 0, 1);
}

/// The lengths of samples, which only a text lets choose.
Lengths lengths_of(const TrainFlags& flags) {
  const Lengths lengths =
      about("--lengths", flags.lengths, [&] { return lengths_called(flags.lengths); });
  require(lengths == Lengths::Fixed || flags.data == "text" || flags.data.starts_with("text:"),
          "--lengths " + flags.lengths + ": samples are lines of a text, but --data " + flags.data +
              " is none; give --data text or text:FILE, or --lengths fixed");
  return lengths;
}

/// Documents end where they end, which a slice cannot know.
void check_slices(const TrainFlags& flags, const Shape& shape) {
  if (lengths_of(flags) == Lengths::Fixed || shape.slices == 1) return;
  const std::string program =
      flags.plan.empty() ? "--schedule " + flags.schedule : "--plan " + flags.plan;
  throw InvalidParameter("--lengths " + flags.lengths + ": " + program + " cuts samples into " +
                         std::to_string(shape.slices) +
                         " slices, which goes with samples of one length; take 1f1b or another "
                         "that cuts nothing, or --lengths fixed");
}

ModelSpec model_of(const TrainFlags& flags) {
  std::string text = flags.model;
  if (flags.dropout) {
    require(text.find("dropout") == std::string::npos,
            "--dropout " + exact(*flags.dropout) + ": the model '" + text +
                "' already names a dropout");
    if (*flags.dropout > 0) text += ",dropout=" + exact(*flags.dropout);
  }
  return about("--model", flags.model, [&] { return parse_model(text); });
}

/// Checkpoints hold the vocabulary of the data, or what its features were divided by; without one
/// of its own, a model of text gets it.
void take_vocabulary(TrainJob& job) {
  if (const auto& vocabulary = job.data.train.windows.vocabulary; vocabulary != nullptr)
    job.options.save.run["vocabulary"] = digits_of(*vocabulary);
  if (job.flags.data.starts_with("csv:"))
    job.options.save.run[kFeatureDivisor] = exact(double{job.data.train.divisor});
  const std::int64_t words = job.data.train.classes;
  if (job.model.context == 0 || words == 0 ||
      job.model.text.find("vocabulary=") != std::string::npos)
    return;
  const DType precision = job.model.precision;
  job.model = parse_model(job.model.text + ",vocabulary=" + std::to_string(words));
  job.model.precision = precision;
}

void check_fit(const TrainFlags& flags, const ModelSpec& model, const TrainTest& data) {
  const bool is_text = data.train.windows.positions > 0;
  require(is_text == (model.context > 0),
          "--model " + flags.model + ": takes " + (is_text ? "features" : "text") +
              ", but --data " + flags.data + " is " + (is_text ? "text" : "none") +
              (is_text ? "; text goes with gpt:" : "; give --data text or text:FILE"));
  if (is_text) {
    require(model.output_columns() >= data.train.classes,
            "--model " + flags.model + ": has a vocabulary of " +
                std::to_string(model.output_columns()) + ", but --data " + flags.data + " of " +
                std::to_string(data.train.classes));
    return;
  }
  require(model.input_columns() == data.train.width(),
          "--model " + flags.model + ": takes " + std::to_string(model.input_columns()) +
              " features, but --data " + flags.data + " has " + std::to_string(data.train.width()));
  require(model.output_columns() >= data.train.classes,
          "--model " + flags.model + ": tells " + std::to_string(model.output_columns()) +
              " classes apart, but --data " + flags.data + " has " +
              std::to_string(data.train.classes));
}

/// A plan file, or a schedule CSV: what says its shape by its rows and numbers.
Plan plan_in(const std::string& path) {
  const std::string text = read_file("--plan", path, kPlanLimit);
  const auto refuse = [&](const Diagnostic& fault) {
    std::string sentence = "--plan " + path + ":" + to_string(fault);
    if (fault.cure != CsvCure::None)
      sentence += "; millrace show " + path +
                  (fault.cure == CsvCure::OldLetters ? " --old-letters" : " --skip-sharding") +
                  " --plan FILE writes a plan file of it";
    throw DataError(sentence);
  };
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos || text[first] == '{') {
    ParsedPlan parsed = read_plan(text);
    if (!parsed.plan) refuse(parsed.diagnostics.front());
    return *std::move(parsed.plan);
  }
  ParsedProgram parsed = read_csv(text);
  if (!parsed.program) refuse(parsed.diagnostics.front());
  parsed.program->name = path.substr(path.rfind('/') + 1);
  return {std::move(*parsed.program), {}};
}

Plan read_plan_file(const CLI::App& verb, const TrainFlags& flags, const ModelSpec& model) {
  for (const char* other : {"schedule", "ranks", "micro_batches", "chunks", "slices"})
    require(verb.get_option(flag(other))->count() == 0,
            named(other) + ": the plan says it; leave it out with --plan");
  Plan plan = plan_in(flags.plan);
  const Shape& shape = plan.program.shape;
  require(shape.slices <= std::max<std::int64_t>(1, model.context),
          "--plan " + flags.plan + ": cuts micro-batches into " + std::to_string(shape.slices) +
              " slices; samples of --model " + flags.model + " have " +
              std::to_string(std::max<std::int64_t>(1, model.context)) +
              (model.context > 1 ? " positions" : " position"));
  require(!shape.forward_only, "--plan " + flags.plan + ": is forward-only and cannot train");
  return plan;
}

/// How many stages a rank has, which only some schedules let choose.
std::int64_t chunks_in(const ScheduleEntry& entry, const TrainFlags& flags) {
  const int own = chunks_of(entry, {});
  require(!flags.chunks || entry.takes("chunks") || *flags.chunks == own,
          named("chunks") + " " + std::to_string(flags.chunks.value_or(0)) + ": schedule " +
              flags.schedule + " has " +
              (own == 1 ? "one stage" : std::to_string(own) + " stages") +
              " per rank; chunks go with interleaved and other chunked schedules");
  return flags.chunks.value_or(own);
}

/// `may_clamp`: -p was not typed, and nothing but the model bounds it.
Program scheduled_program(const TrainFlags& flags, const ModelSpec& model, bool may_clamp) {
  const ScheduleEntry& entry = about("--schedule", flags.schedule, [&]() -> const ScheduleEntry& {
    return find_schedule(flags.schedule);
  });
  require(model.context > 0 || !entry.takes("slices"),
          "--schedule " + flags.schedule +
              ": cuts sequences into slices, which only a model of text has");
  require(!flags.slices || entry.takes("slices"),
          named("slices") + " " + std::to_string(flags.slices.value_or(0)) + ": schedule " +
              flags.schedule + " cuts nothing; seq-1f1b and others of millrace list do");
  if (flags.slices)
    require_count(named("slices"), *flags.slices, std::max<std::int64_t>(1, model.context));
  const std::int64_t chunks = chunks_in(entry, flags);
  const std::int64_t most = std::max<std::int64_t>(1, model.layer_count() / chunks);
  const std::int64_t ranks = may_clamp ? std::min(flags.ranks, most) : flags.ranks;
  require(ranks * chunks <= model.layer_count(),
          named("ranks") + " " + std::to_string(ranks) +
              (chunks > 1 ? " with " + std::to_string(chunks) + " chunks each" : "") +
              ": the model has " + std::to_string(model.layer_count()) + " layers, so at most " +
              std::to_string(model.layer_count() / chunks));
  ScheduleOptions options;
  options.ranks = static_cast<int>(ranks);
  options.micro_batches = static_cast<int>(flags.micro_batches);
  if (flags.chunks) options.chunks = static_cast<int>(*flags.chunks);
  if (flags.slices) options.slices = static_cast<int>(*flags.slices);
  Program program =
      about("--schedule", flags.schedule, [&] { return generate(flags.schedule, options); });
  require(!program.shape.forward_only, "--schedule " + flags.schedule + ": cannot train");
  return program;
}

std::vector<int> typed_boundaries(const TrainFlags& flags, const ModelSpec& model, int stages) {
  std::vector<int> boundaries{0};
  std::istringstream text(flags.partition);
  for (std::string part; std::getline(text, part, ',');) {
    int boundary = 0;
    const auto [rest, error] = std::from_chars(part.data(), part.data() + part.size(), boundary);
    require(error == std::errc() && rest == part.data() + part.size(),
            "--partition " + flags.partition +
                ": expected even, time or layer numbers B1,B2,..., found '" + part + "'");
    boundaries.push_back(boundary);
  }
  boundaries.push_back(model.layer_count());
  require(static_cast<int>(boundaries.size()) == stages + 1,
          "--partition " + flags.partition + ": " + std::to_string(stages) + " stages need " +
              std::to_string(stages - 1) + " boundaries, found " +
              std::to_string(boundaries.size() - 2));
  return boundaries;
}

std::vector<int> boundaries_of(const TrainFlags& flags, const TrainJob& job) {
  const int stages = job.program.shape.stages();
  const int layers = job.model.layer_count();
  require(stages <= layers,
          "--plan " + flags.plan + ": has " + std::to_string(stages) + " stages, but the model " +
              std::to_string(layers) + " layers");
  if (flags.partition == "even") return even_boundaries(job.model, stages);
  const std::int64_t rows = job.options.batch_size / *job.options.micro_batches /
                            job.options.accumulate / flags.data_parallel;
  if (flags.partition == "time")
    return balanced_boundaries(job.model, layer_seconds(job.model, job.data.train, rows), stages);
  std::vector<int> boundaries = typed_boundaries(flags, job.model, stages);
  about("--partition", flags.partition, [&] {
    check_boundaries(boundaries, layers);
    return 0;
  });
  return boundaries;
}

/// What follows from the size of the data.
void set_length(const TrainFlags& flags, TrainJob& job) {
  TrainerOptions& options = job.options;
  const std::int64_t n = job.data.train.epoch_size();
  const std::int64_t per_epoch = options.last_batch == LastBatch::Update
                                     ? (n + options.batch_size - 1) / options.batch_size
                                     : n / options.batch_size;
  require(per_epoch >= 1,
          "--batch-size " + std::to_string(options.batch_size) +
              ": with --last-batch drop it must be at most the " + std::to_string(n) +
              " training samples");
  const std::int64_t total = options.steps > 0 ? options.steps : options.epochs * per_epoch;
  set_length(flags.rule, total, options);
}

/// Numbers, names and the model: what needs neither data nor a program.
Recompute recompute_of(const std::string& text) {
  if (text == "true") return {.kind = RecomputeKind::All};  // a file's `recompute = true`
  return text == "false" ? Recompute() : parse_recompute(text);
}

TrainJob start_job(const TrainFlags& flags) {
  check_numbers(flags);
  TrainJob job;
  job.flags = flags;
  TrainerOptions& options = job.options;
  options.seed = static_cast<std::uint64_t>(flags.seed);
  options.epochs = flags.epochs.value_or(60);
  options.steps = flags.steps.value_or(0);
  options.recompute =
      about("--recompute", flags.recompute, [&] { return recompute_of(flags.recompute); });
  static_cast<void>(lengths_of(flags));
  options.save = save_options(flags.checkpoints, flags.data, flags.lengths);
  options.records = flags.watch.records();
  options.inspect_gradients = flags.watch.inspect_gradients ? 1 : 0;
  options.executor = flags.executor;
  options.shard_optimizer = flags.shard_optimizer;
  options.executor_options.threads_per_rank = static_cast<int>(flags.threads_per_rank);
  const auto kinds = executor_kinds();
  require(std::find(kinds.begin(), kinds.end(), flags.executor) != kinds.end(),
          "--executor " + flags.executor + ": known are flow-graph, ranks, sequential");
  options.last_batch =
      about("--last-batch", flags.last_batch, [&] { return last_batch(flags.last_batch); });

  job.model = model_of(flags);
  job.model.precision =
      about("--precision", flags.precision, [&] { return precision_of(flags.precision); });
  return job;
}

/// The program and the cut.
void add_program(const CLI::App& verb, const TrainFlags& flags, bool alone, TrainJob& job) {
  TrainerOptions& options = job.options;
  Plan plan;
  if (!flags.plan.empty()) plan = read_plan_file(verb, flags, job.model);
  const bool may_clamp = alone && verb.get_option(flag("ranks"))->count() == 0;
  job.program =
      flags.plan.empty() ? scheduled_program(flags, job.model, may_clamp) : std::move(plan.program);

  check_slices(flags, job.program.shape);

  options.schedule = flags.plan.empty() ? flags.schedule : job.program.name;
  options.ranks = job.program.shape.ranks;
  options.micro_batches = job.program.shape.micro_batches;
  set_batch(flags.batch,
            flags.plan.empty() ? named("micro_batches")
                               : ParameterText("--plan " + flags.plan + ": micro-batches"),
            flags.data_parallel,
            options);
  check_copies(options, job.grid());
  options.boundaries = boundaries_of(flags, job);
  if (!plan.boundaries.empty() && verb.get_option("--partition")->count() == 0) {
    options.boundaries = std::move(plan.boundaries);
    options.boundaries.insert(options.boundaries.begin(), 0);
    options.boundaries.push_back(job.model.layer_count());
    about("--plan", flags.plan, [&] {
      check_boundaries(options.boundaries, job.model.layer_count());
      return 0;
    });
  }
  note_pipeline(flags, alone, job);
}

}  // namespace

TrainJob plan_job(const CLI::App& verb, const TrainFlags& flags) {
  require(flags.partition != "time",
          "--partition time: every process would measure its own cut; give layer numbers, as "
          "millrace train --partition time --json prints them");
  TrainJob job = start_job(flags);
  add_program(verb, flags, false, job);
  set_rule(flags.rule, job.model, job.options);
  scale_rate(flags.batch, job.options);
  return job;
}

void supply_data(TrainJob& job, TrainTest data) {
  job.data = std::move(data);
  take_vocabulary(job);
  if (job.data.train.width() != 0) check_fit(job.flags, job.model, job.data);
  set_length(job.flags, job);
}

std::int64_t TrainJob::full_batch() const {
  return std::min(options.batch_size, data.train.epoch_size());
}

std::int64_t TrainJob::epochs() const {
  if (options.steps == 0) return options.epochs;
  const std::int64_t n = data.train.epoch_size(), size = options.batch_size;
  const bool update = options.last_batch == LastBatch::Update;
  const std::int64_t per_epoch = std::max<std::int64_t>(1, (update ? n + size - 1 : n) / size);
  return (options.steps + per_epoch - 1) / per_epoch;
}

namespace {

/// Where the machine chose the number of ranks.
std::string ranks_line(const CLI::App& verb, const TrainJob& job) {
  const int ranks = *job.options.ranks;
  if (verb.get_option(flag("ranks"))->count() > 0 || ranks != ranks_of_machine()) return {};
  const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
  return std::to_string(ranks) + " ranks, as this machine has " + std::to_string(cores) +
         (cores == 1 ? " core" : " cores") + " (2 to 4; -p sets another number)";
}

}  // namespace

TrainJob make_job(const CLI::App& verb, const TrainFlags& flags) {
  TrainJob job = start_job(flags);
  job.data = read_data(job);
  take_vocabulary(job);
  check_fit(flags, job.model, job.data);
  add_program(verb, flags, true, job);
  set_rule(flags.rule, job.model, job.options);
  scale_rate(flags.batch, job.options);
  set_length(flags, job);
  if (flags.plan.empty()) job.ranks_line = ranks_line(verb, job);
  return job;
}

TrainTest read_data(const TrainJob& job) {
  return about("--data", job.flags.data, [&] {
    const float divisor =
        job.flags.data.starts_with("csv:") ? divisor_of(job.flags.checkpoints) : 0.0F;
    return load_data(
        job.flags.data, job.options.seed, job.model.context, lengths_of(job.flags), divisor);
  });
}

}  // namespace millrace::cli
