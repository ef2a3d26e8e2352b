// The end of a training run, told twice.
#include <algorithm>
#include <array>
#include <cstdio>
#include <iomanip>
#include <numbers>
#include <ostream>

#include <nlohmann/json.hpp>

#include "cli/train/progress.hpp"
#include "cli/train/run.hpp"

namespace millrace::cli {

namespace {

using nlohmann::ordered_json;

/// All bits of a double as C prints them: 0x1.8p+1.
std::string hex_float(double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%a", value);
  return text.data();
}

}  // namespace

ordered_json settings_of(const TrainJob& job, bool in_processes) {
  const TrainerOptions& options = job.options;
  ordered_json settings;
  settings["model"] = job.model.text;
  settings["data"] = job.flags.data;
  if (job.data.train.windows.positions > 0) settings["lengths"] = job.flags.lengths;
  if (job.flags.data.starts_with("csv:")) settings["feature_divisor"] = job.data.train.divisor;
  settings["train_samples"] = job.data.train.size();
  settings["test_samples"] = job.data.test.size();
  if (job.data.validation.size() > 0) {
    settings["validation"] = job.flags.validation;
    settings["validation_samples"] = job.data.validation.size();
  }
  if (job.grid().data() > 1) settings["data_parallel"] = job.grid().data();
  settings["ranks"] = job.program.shape.ranks;
  settings["chunks"] = job.program.shape.chunks();
  settings["micro_batches"] = job.program.shape.micro_batches;
  if (!job.flags.scale_lr.empty()) settings["scale_lr_with_batch"] = job.flags.scale_lr;
  settings["schedule"] = job.flags.plan.empty() ? job.flags.schedule : job.program.name;
  settings["executor"] = in_processes ? "processes" : options.run.executor;
  settings["boundaries"] = job.boundaries;
  settings["precision"] = name_of(job.model.precision);
  settings.update(settings_json(with_loss_scale(options, job.model.precision)));
  settings.erase(options.fit.steps ? "epochs" : "steps");
  return settings;
}

namespace {

double bits_of(double nats) {
  return nats / std::numbers::ln2;
}

/// What all steps read: tokens, and positions that they took.
struct Read {
  std::int64_t tokens = 0, positions = 0;
  double seconds = 0;

  [[nodiscard]] double tokens_per_second() const {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  }
  [[nodiscard]] double padding() const { return padding_share(tokens, positions); }
};

Read read_by(const FitReport& fit) {
  Read read;
  read.seconds = fit.seconds;
  for (const EpochReport& epoch : fit.epochs) {
    read.tokens += epoch.loss.evaluated;
    read.positions += epoch.positions;
  }
  return read;
}

ordered_json text_of(const TrainOutcome& outcome) {
  ordered_json text;
  text["nats_per_character"] = outcome.score.mean_loss();
  text["bits_per_character"] = bits_of(outcome.score.mean_loss());
  text["gzip_bits_per_character"] = outcome.text->gzip_bits;
  const Read read = read_by(outcome.fit);
  text["tokens_per_second"] = read.tokens_per_second();
  if (outcome.text->padded) text["padding"] = read.padding();
  if (!outcome.text->sample.empty()) text["sample"] = outcome.text->sample;
  return text;
}

ordered_json validations_of(const TrainJob& job, const FitReport& fit) {
  ordered_json list = ordered_json::array();
  for (const ValidationReport& report : fit.validations) {
    const double loss = report.score.mean_loss();
    list.push_back({{"step", report.step},
                    {"epoch", report.epoch},
                    {"loss", loss},
                    {"accuracy", report.score.accuracy()},
                    {"seconds", report.seconds}});
    if (job.data.train.windows.positions > 0) list.back()["bits_per_character"] = bits_of(loss);
  }
  return list;
}

ordered_json bubble_of(const StepUse& use) {
  ordered_json bubble;
  bubble["total"] = use.bubble();
  bubble["makespan_seconds"] = use.makespan;
  bubble["per_rank"] = ordered_json::array();
  for (const RankUse& rank : use.ranks) bubble["per_rank"].push_back(rank.bubble(use.makespan));
  return bubble;
}

double product_operations_per_second(const TrainOutcome& outcome) {
  return outcome.fit.samples_per_second() * outcome.products.operations_per_sample;
}

/// Of what the machine makes.
double product_share(const TrainOutcome& outcome) {
  return product_operations_per_second(outcome) / outcome.products.machine;
}

ordered_json products_of(const TrainOutcome& outcome) {
  ordered_json products;
  products["operations_per_second"] = product_operations_per_second(outcome);
  products["machine_operations_per_second"] = outcome.products.machine;
  products["cores"] = outcome.products.cores;
  products["share"] = product_share(outcome);
  return products;
}

std::string cores_text(int count) {
  return std::to_string(count) + (count == 1 ? " core" : " cores");
}

void print_products(std::ostream& stream, const TrainOutcome& outcome) {
  if (outcome.products.operations_per_sample == 0) return;
  constexpr double kGiga = 1e9;
  stream << std::setprecision(1)
         << "matrix multiplication: " << product_operations_per_second(outcome) / kGiga
         << " GFLOP/s, " << 100 * product_share(outcome) << " % of "
         << outcome.products.machine / kGiga << " GFLOP/s measured on "
         << cores_text(outcome.products.cores) << '\n';
}

void print_score(std::ostream& stream, const TrainOutcome& outcome) {
  const double loss = outcome.score.mean_loss();
  stream << std::fixed << std::setprecision(4);
  if (outcome.text)
    stream << "validation loss " << loss << " nats per character, " << bits_of(loss)
           << " bits (gzip -9: " << outcome.text->gzip_bits << "), " << outcome.score.loss.evaluated
           << " characters\n";
  else
    stream << std::setprecision(2) << "test accuracy " << 100 * outcome.score.accuracy() << " % ("
           << outcome.score.loss.correct << " of " << outcome.score.loss.evaluated
           << "), test loss " << std::setprecision(4) << loss << '\n';
}

void print_skipped(std::ostream& stream, std::int64_t steps, const char* cause) {
  if (steps > 0)
    stream << ", " << steps << (steps == 1 ? " step" : " steps") << " skipped (" << cause << ")";
}

void print_speed(std::ostream& stream, const TrainOutcome& outcome) {
  stream << std::setprecision(0) << outcome.fit.samples << " samples in " << std::setprecision(2)
         << outcome.fit.seconds << " s, " << std::setprecision(0)
         << outcome.fit.samples_per_second() << " samples/s, " << outcome.updates
         << (outcome.updates == 1 ? " update" : " updates");
  const Read read = read_by(outcome.fit);
  if (outcome.text) stream << ", " << read.tokens_per_second() << " tokens/s";
  if (outcome.text && outcome.text->padded)
    stream << ", " << std::setprecision(1) << 100 * read.padding() << " % of positions padding";
  const std::int64_t without_weight = outcome.fit.without_weight();
  print_skipped(stream, outcome.fit.skipped() - without_weight, "gradient not finite");
  print_skipped(stream, without_weight, "all targets weigh 0");
  stream << '\n';
}

/// A row's shares: measured, simulated, and simulated on the processors there are.
template <class Share>
void print_shares(std::ostream& stream, const TrainOutcome& outcome, Share&& share) {
  stream << std::setw(8) << 100 * share(outcome.measured) << " %" << std::setw(10)
         << 100 * share(outcome.simulated) << " %";
  if (outcome.on_cores) stream << std::setw(10) << 100 * share(*outcome.on_cores) << " %";
}

/// The whole pipeline's, beside what the plan predicted with the measured times of the passes.
void print_bubble(std::ostream& stream, const TrainOutcome& outcome) {
  stream << std::setprecision(1) << "bubble " << 100 * outcome.measured.bubble() << " %, simulated "
         << 100 * outcome.simulated.bubble() << " % with a core per rank";
  if (outcome.on_cores)
    stream << ", " << 100 * outcome.on_cores->bubble() << " % on " << cores_text(outcome.cores);
  stream << '\n';
}

void print_bubbles(std::ostream& stream, const TrainOutcome& outcome) {
  stream << "by rank      measured   simulated";
  if (outcome.on_cores) stream << std::setw(12) << "on " + cores_text(outcome.cores);
  stream << "   peak stash bytes (predicted)\n" << std::setprecision(1);
  for (std::size_t rank = 0; rank < outcome.measured.ranks.size(); ++rank) {
    stream << "  rank " << std::left << std::setw(4) << rank << std::right;
    print_shares(
        stream, outcome, [&](const StepUse& use) { return use.ranks[rank].bubble(use.makespan); });
    stream << std::setw(13) << outcome.peak_counted[rank] << " (" << outcome.peak_predicted[rank]
           << ")\n";
  }
}

void print_optimizer(std::ostream& stream, const TrainOutcome& outcome) {
  const std::size_t counted = std::ranges::max(outcome.optimizer_counted);
  if (counted > 0)
    stream << "optimizer state and master weights: at most " << counted
           << " bytes per rank (predicted " << std::ranges::max(outcome.optimizer_predicted)
           << ")\n";
}

/// Of the first copy's ranks, where gradients are added by a tree.
void print_partial_sums(std::ostream& stream, const TrainOutcome& outcome) {
  if (outcome.sums_counted.empty()) return;
  stream << "peak bytes of partial sums (predicted), by rank:";
  for (std::size_t rank = 0; rank < outcome.sums_counted.size(); ++rank)
    stream << (rank == 0 ? " " : ", ") << outcome.sums_counted[rank] << " ("
           << outcome.sums_predicted[rank] << ")";
  stream << '\n';
}

bool shares_memory(const TrainOutcome& outcome) {
  return std::ranges::any_of(outcome.shared_predicted, [](std::size_t bytes) { return bytes > 0; });
}

void print_shared(std::ostream& stream, const TrainOutcome& outcome) {
  if (!shares_memory(outcome)) return;
  stream << "bytes of shared memory for passes (predicted), by rank:";
  for (std::size_t rank = 0; rank < outcome.shared_counted.size(); ++rank)
    stream << (rank == 0 ? " " : ", ") << outcome.shared_counted[rank] << " ("
           << outcome.shared_predicted[rank] << ")";
  stream << "\nbytes of shared memory for collectives: at most "
         << std::ranges::max(outcome.shared_by_collectives) << '\n';
}

}  // namespace

void print_outcome(std::ostream& stream, const TrainOutcome& outcome) {
  print_score(stream, outcome);
  print_speed(stream, outcome);
  print_bubble(stream, outcome);
  print_products(stream, outcome);
  stream << "weights " << outcome.weights_hash << '\n';
  print_bubbles(stream, outcome);
  print_optimizer(stream, outcome);
  print_partial_sums(stream, outcome);
  print_shared(stream, outcome);
  if (const SavedCheckpoints& saved = outcome.checkpoints; saved.saved + saved.failed > 0) {
    stream << saved.saved << (saved.saved == 1 ? " checkpoint" : " checkpoints") << " saved";
    if (!saved.newest.empty()) stream << ", the newest " << saved.newest;
    if (saved.failed > 0) stream << "; " << saved.failed << " FAILED";
    stream << '\n';
  }
  if (outcome.processes > 0) {
    stream << outcome.processes << (outcome.processes == 1 ? " process" : " processes");
    if (outcome.places > 1) stream << " of " << outcome.places << " places each";
    stream << '\n';
  }
  if (outcome.text && !outcome.text->sample.empty())
    stream << "sample:" << outcome.text->sample << '\n';
}

void print_early_stop(std::ostream& stream, const TrainOutcome& outcome) {
  if (!outcome.fit.early_stop.empty())
    stream << "stopped early: " << outcome.fit.early_stop << '\n';
}

void print_finished(std::ostream& stream, const TrainOutcome& outcome, std::int64_t step) {
  stream << "finished at step " << step << "; nothing is left to train\n";
  print_score(stream, outcome);
  stream << "weights " << outcome.weights_hash << '\n';
  print_early_stop(stream, outcome);
}

std::string finished_json(const TrainJob& job, const TrainOutcome& outcome, std::int64_t step) {
  ordered_json document;
  document["settings"] = settings_of(job, outcome.processes > 0);
  document["finished"] = true;
  if (!outcome.fit.early_stop.empty()) document["stopped_early"] = outcome.fit.early_stop;
  document["step"] = step;
  document["updates"] = outcome.updates;
  document["accuracy"] = outcome.score.accuracy();
  document["test_loss"] = outcome.score.mean_loss();
  document["weights_hash"] = outcome.weights_hash;
  return document.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

void print_files(std::ostream& stream, const TrainFlags& flags) {
  if (!flags.watch.log.empty()) stream << "log written to " << flags.watch.log << '\n';
  if (!flags.watch.metrics.empty()) stream << "metrics written to " << flags.watch.metrics << '\n';
  if (!flags.watch.report.empty()) stream << "report written to " << flags.watch.report << '\n';
  if (!flags.trace.empty()) stream << "timeline written to " << flags.trace << '\n';
  if (!flags.svg.empty()) stream << "picture written to " << flags.svg << '\n';
  if (!flags.profile.empty()) stream << "costs written to " << flags.profile << '\n';
}

std::string outcome_json(const TrainJob& job, const TrainOutcome& outcome) {
  ordered_json document;
  document["settings"] = settings_of(job, outcome.processes > 0);
  document["losses"] = ordered_json::array();
  document["losses_hex"] = ordered_json::array();
  for (const EpochReport& epoch : outcome.fit.epochs) {
    document["losses"].push_back(epoch.mean_loss());
    document["losses_hex"].push_back(hex_float(epoch.mean_loss()));
  }
  if (job.data.validation.size() > 0) document["validations"] = validations_of(job, outcome.fit);
  if (!outcome.fit.early_stop.empty()) document["stopped_early"] = outcome.fit.early_stop;
  document["updates"] = outcome.updates;
  document["skipped"] = outcome.fit.skipped();
  document["skipped_without_weight"] = outcome.fit.without_weight();
  document["accuracy"] = outcome.score.accuracy();
  document["test_loss"] = outcome.score.mean_loss();
  document["weights_hash"] = outcome.weights_hash;
  document["samples"] = outcome.fit.samples;
  document["seconds"] = outcome.fit.seconds;
  document["samples_per_second"] = outcome.fit.samples_per_second();
  if (outcome.products.operations_per_sample > 0) document["products"] = products_of(outcome);
  document["bubble"] = {{"measured", bubble_of(outcome.measured)},
                        {"simulated", bubble_of(outcome.simulated)}};
  if (outcome.on_cores) {
    document["bubble"]["simulated_on_cores"] = bubble_of(*outcome.on_cores);
    document["bubble"]["simulated_on_cores"]["cores"] = outcome.cores;
  }
  document["peak_stash_bytes"] = {{"counted", outcome.peak_counted},
                                  {"predicted", outcome.peak_predicted}};
  document["optimizer_bytes"] = {{"counted", outcome.optimizer_counted},
                                 {"predicted", outcome.optimizer_predicted}};
  if (!outcome.sums_counted.empty())
    document["peak_sum_bytes"] = {{"counted", outcome.sums_counted},
                                  {"predicted", outcome.sums_predicted}};
  if (shares_memory(outcome))
    document["shared_bytes"] = {{"counted", outcome.shared_counted},
                                {"predicted", outcome.shared_predicted},
                                {"collectives", outcome.shared_by_collectives}};
  if (const SavedCheckpoints& saved = outcome.checkpoints; saved.saved + saved.failed > 0)
    document["checkpoints"] = {
        {"saved", saved.saved}, {"failed", saved.failed}, {"newest", saved.newest}};
  if (outcome.processes > 0) document["processes"] = outcome.processes;
  if (outcome.places > 1) document["places_per_process"] = outcome.places;
  if (outcome.text) document["text"] = text_of(outcome);
  // A sample may be cut inside a character.
  return document.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace millrace::cli
