// From options to a job: numbers, model, settings and data.
#include "cli/train/options.hpp"

#include <array>
#include <charconv>
#include <ctime>
#include <fmt/format.h>
#include <unistd.h>

#include "cli/generate/sample.hpp"
#include "cli/numbers.hpp"
#include "cli/train/refusals.hpp"
#include "cli/vocabulary.hpp"
#include "millrace/core/error.hpp"
#include "millrace/stages/layer.hpp"

namespace millrace::cli {

namespace {

void check_numbers(const TrainFlags& flags) {
  constexpr std::int64_t kMostUnits = 1'000'000;
  require_count(named("data_parallel"), flags.data_parallel, 4096);
  require_count(named("ranks"), flags.ranks, 4096);
  require_count(named("micro_batches"), flags.micro_batches, kMostUnits);
  check_batch(flags);
  check_watch(flags.watch);
  static_cast<void>(held_out_share(flags.validation));
  if (flags.chunks) require_count(named("chunks"), *flags.chunks, 4096);
  if (flags.dropout) require_between("--dropout", *flags.dropout, 0, 1);
}

/// The rules between settings.
void check_given(const TrainFlags& flags, const SettingValues& given) {
  const auto has = [&](std::string_view name) { return given.contains(name); };
  require(!has("batch_size") || !flags.effective_batch,
          "--batch-size and --effective-batch: give one of them");
  require(!has("epochs") || !has("steps"), "--epochs and --steps: give one of them");
  for (const char* name : {"epochs", "steps"})
    require(!has(name) || given.at(name) != "0", named(name) + " 0: must be at least 1");
  require(flags.start.weights.empty() || flags.start.resume.empty(),
          fmt::format("--weights {}: a checkpoint has weights; leave out --resume or this",
                      flags.start.weights));
  require(!flags.start.narrow_weights || !flags.start.weights.empty(),
          "--narrow-weights: needs --weights, whose f64 it rounds");
  for (const std::string_view name : kOfValidation)
    require(
        !has(name) || !flags.validation.empty(),
        fmt::format(
            "{} {}: needs --validation", flag(name), has(name) ? given.find(name)->second : ""));
  if (has("save_every"))
    require(has("save_folder"),
            fmt::format("--save-every {}: needs --save, which names the folder",
                        given.at("save_every")));
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

/// "2031-05-06T07:08:09Z".
std::string now() {
  const std::time_t time = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

ModelSpec model_of(const TrainFlags& flags) {
  std::string text = flags.model;
  if (flags.dropout) {
    require(
        text.find("dropout") == std::string::npos,
        fmt::format(
            "--dropout {}: the model '{}' already names a dropout", exact(*flags.dropout), text));
    if (*flags.dropout > 0) text += ",dropout=" + exact(*flags.dropout);
  }
  ModelSpec model = about("--model", flags.model, [&] { return parse_model(text); });
  model.precision =
      about("--precision", flags.precision, [&] { return precision_of(flags.precision); });
  return model;
}

void check_groups(const TrainJob& job) {
  if (job.options.step.parameters.empty()) return;
  const std::vector<std::string> names = parameter_names(job.model);
  for (const ParameterGroup& group : job.options.step.parameters)
    about("--parameters", to_string(group), [&] { check_names(group, names); });
}

/// Checkpoints store the vocabulary of the data, or the divisor of its features; a model of text
/// without a vocabulary of its own gets that of the data.
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
  job.model = parse_model(fmt::format("{},vocabulary={}", job.model.text, words));
  job.model.precision = precision;
}

void check_fit(const TrainFlags& flags, const ModelSpec& model, const TrainTest& data) {
  const bool is_text = data.train.windows.positions > 0;
  const std::int64_t classes = data.train.classes, outputs = model.output_columns();
  const std::string option = fmt::format("--model {}: ", flags.model), of = "--data " + flags.data;
  require(!is_text || model.context > 0,
          option + "takes features, but " + of + " is text; use gpt:");
  require(is_text || model.context == 0,
          option + "takes text, but " + of + " is not text; use text or text:FILE");
  const std::int64_t inputs = model.input_columns(), width = data.train.width();
  require(is_text || inputs == width,
          fmt::format("{}takes {} features, but {} has {}", option, inputs, of, width));
  const char* what = is_text ? "bytes in its vocabulary" : "classes";
  require(outputs >= classes,
          fmt::format("{}has {} {}, but {} has {}", option, outputs, what, of, classes));
  const Dataset& held = data.validation;
  require(held.size() == 0 || (held.width() == width && held.classes <= outputs),
          fmt::format(
              "--validation {}: has other features or more classes than {}", flags.validation, of));
}

/// Sets what follows from the size of the data.
void set_length(TrainJob& job) {
  TrainerOptions& options = job.options;
  require(job.batches_per_epoch() >= 1,
          fmt::format("--batch-size {}: with --last-batch drop it must be at most the {} training "
                      "samples",
                      options.fit.batch_size,
                      job.data.train.epoch_size()));
  const std::int64_t updates = job.steps();
  options.step.learning_rate.total_updates = updates;
  if (!job.given.contains("warm_up")) options.step.learning_rate.warm_up = updates / 20;
}

/// Numbers, settings and the model, without data or a program.
TrainJob start_job(const CLI::App& subcommand, const TrainFlags& flags) {
  check_numbers(flags);
  TrainJob job;
  job.flags = flags;
  job.given = given_settings(subcommand);
  check_given(flags, job.given);
  TrainerOptions& options = job.options;
  apply_settings(options, with_presets(job.given));
  if (flags.data_parallel > 1 && !job.given.contains("accumulate_order"))
    options.step.accumulate_order = AccumulateOrder::Tree;
  static_cast<void>(lengths_of(flags));
  options.save.run = {
      {"data", flags.data}, {"lengths", flags.lengths}, {"host", host_name()}, {"began", now()}};
  require(!options.validation.keep_best || !options.save.folder.empty(),
          fmt::format("--keep-best {}: needs --save, which names the folder",
                      name_of(options.validation.metric())));
  if (!flags.validation.empty()) {
    options.save.run["validation"] = flags.validation;
    for (const Setting& row : settings())
      if (std::ranges::find(kOfValidation, row.name) != kOfValidation.end())
        options.save.run[std::string(row.name)] = row.value.get(options);
  }
  options.watch.records = flags.watch.records();
  options.watch.inspect_gradients = flags.watch.inspect_gradients ? 1 : 0;
  job.model = model_of(flags);
  return job;
}

/// Where the machine sets the number of ranks.
std::string ranks_line(const CLI::App& subcommand, const TrainJob& job) {
  const int ranks = job.program.shape.ranks;
  if (subcommand.get_option(flag("ranks"))->count() > 0 || ranks != ranks_of_machine()) return {};
  const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
  return fmt::format("{} ranks, as this machine has {} {} (2 to 4; -p sets another number)",
                     ranks,
                     cores,
                     cores == 1 ? "core" : "cores");
}

}  // namespace

std::optional<double> held_out_share(const std::string& validation) {
  double share = 0;
  const char* end = validation.data() + validation.size();
  const auto [rest, error] = std::from_chars(validation.data(), end, share);
  if (error == std::errc::invalid_argument || rest != end) return {};
  require(share > 0 && share < 1,
          fmt::format("--validation {}: must be above 0 and below 1, or data, as --data takes it",
                      validation));
  return share;
}

Lengths lengths_of(const TrainFlags& flags) {
  const Lengths lengths =
      about("--lengths", flags.lengths, [&] { return lengths_called(flags.lengths); });
  require(lengths == Lengths::Fixed || flags.data == "text" || flags.data.starts_with("text:"),
          fmt::format("--lengths {}: samples are lines of a text, but --data {} is none; give "
                      "--data text or text:FILE, or --lengths fixed",
                      flags.lengths,
                      flags.data));
  return lengths;
}

std::int64_t TrainJob::batches_per_epoch() const {
  const std::int64_t samples = data.train.epoch_size(), size = options.fit.batch_size;
  return (options.fit.last_batch == LastBatch::Update ? samples + size - 1 : samples) / size;
}

std::int64_t TrainJob::steps() const {
  return options.fit.steps.value_or(options.fit.epochs * batches_per_epoch());
}

std::int64_t TrainJob::epochs() const {
  if (!options.fit.steps) return options.fit.epochs;
  const std::int64_t per_epoch = std::max<std::int64_t>(1, batches_per_epoch());
  return (*options.fit.steps + per_epoch - 1) / per_epoch;
}

TrainJob plan_job(const CLI::App& subcommand, const TrainFlags& flags) {
  require(flags.partition != "time",
          "--partition time: every process would measure its own partition; give layer numbers, as "
          "millrace train --partition time --json prints them");
  TrainJob job = start_job(subcommand, flags);
  add_program(subcommand, false, job);
  check_groups(job);
  scale_rate(flags, job.options);
  return job;
}

TrainJob make_job(const CLI::App& subcommand, const TrainFlags& flags) {
  TrainJob job = start_job(subcommand, flags);
  job.data = read_data(job);
  take_vocabulary(job);
  check_fit(flags, job.model, job.data);
  add_program(subcommand, true, job);
  check_groups(job);
  scale_rate(flags, job.options);
  set_length(job);
  if (flags.plan.empty()) job.ranks_line = ranks_line(subcommand, job);
  return job;
}

void supply_data(TrainJob& job, TrainTest data) {
  job.data = std::move(data);
  take_vocabulary(job);
  if (job.data.train.width() != 0) check_fit(job.flags, job.model, job.data);
  set_length(job);
}

TrainTest read_data(const TrainJob& job) {
  const std::string& name = job.flags.data;
  const std::uint64_t seed = job.options.step.seed;
  TrainTest data = about("--data", name, [&] {
    const float divisor = name.starts_with("csv:") ? divisor_of(job.flags.start) : 0.0F;
    return load_data(name, seed, job.model.context, lengths_of(job.flags), divisor);
  });
  const std::string& validation = job.flags.validation;
  if (validation.empty()) return data;
  about("--validation", validation, [&] {
    if (const std::optional<double> share = held_out_share(validation)) {
      TrainTest parts = hold_out(data.train, *share);
      data.train = std::move(parts.train);
      data.validation = std::move(parts.test);
    } else {
      data.validation = load_validation(validation, name, data.train, seed);
    }
    return 0;
  });
  return data;
}

}  // namespace millrace::cli
