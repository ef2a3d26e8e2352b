#include "cli/train/run.hpp"

#include <algorithm>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <stop_token>
#include <sys/ioctl.h>
#include <thread>
#include <unistd.h>

#include "cli/generate/sample.hpp"
#include "cli/standard_streams.hpp"
#include "cli/train/checkpoints.hpp"
#include "cli/train/progress.hpp"
#include "cli/train/records.hpp"
#include "cli/train/stop_signals.hpp"
#include "cli/vocabulary.hpp"
#include "millrace/stages/products.hpp"
#include "millrace/training/dataset.hpp"
#include "millrace/training/ranks.hpp"

namespace millrace::cli {

namespace {

Trainer trainer_of(const TrainJob& job, const TrainPlace& place) {
  if (place.endpoint == nullptr) return Trainer(job.model, job.plan(), job.options);
  const GridPosition position(*place.endpoint, job.grid());
  return Trainer(rank_parts(job.model, job.plan(), job.options, position, *place.group));
}

/// Of a terminal; 0 for another file.
std::size_t columns_of(int file) {
  winsize size{};
  return ::ioctl(file, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

/// Progress and results, printed by rank 0.
class Printer {
 public:
  Printer(const TrainJob& job, const TrainPlace& place)
      : job_(job),
        result_mark_(place.result_mark),
        outputs_(job.flags),
        watching_(job),
        place_(job.flags.json ? STDERR_FILENO : STDOUT_FILENO),
        buffer_(place_),
        stream_(&buffer_),
        progress_(stream_,
                  {.moves = isatty(place_) == 1,
                   .columns = columns_of(place_),
                   .epochs = job.epochs(),
                   .batches_per_epoch = job.batches_per_epoch(),
                   .steps = job.steps(),
                   .idle = place.endpoint == nullptr ? "bubble" : "bubble of rank 0",
                   .padded = job.data.train.has_documents()}) {}

  /// Before the first step.
  void begin(const Trainer& trainer) {
    const bool resumes = !job_.flags.start.from.empty();
    watching_.begin(resumes,
                    trainer.state().counters().mini_batches,
                    trainer.executor().program(),
                    job_.grid().data());
    if (!job_.ranks_line.empty()) stream_ << job_.ranks_line << std::endl;
    stream_ << batch_line(job_) << std::endl << filling_hint(job_.program.shape);
    for (const std::string& warning : trainer.warnings(job_.data.train.epoch_size()))
      stream_ << "warning: " << warning << std::endl;
  }

  void show(const GradientInspection& gradients) { stream_ << to_string(gradients) << std::flush; }

  void validated(const ValidationReport& report) {
    progress_.validation(report, job_.data.train.windows.positions > 0);
  }

  Progress& progress() { return progress_; }
  Watching& watching() { return watching_; }

  /// Where there was nothing to train; files of the run that trained stay as they are.
  void report_finished(const TrainOutcome& outcome, std::int64_t step) {
    begin_result();
    if (job_.flags.json)
      std::cout << finished_json(job_, outcome, step) << std::flush;
    else
      print_finished(std::cout, outcome, step);
  }

  void report(const TrainOutcome& outcome,
              const Program& program,
              const RunMeasurement::Whole& whole) {
    begin_result();
    if (job_.flags.json) {
      std::cout << outcome_json(job_, outcome) << std::flush;
    } else {
      std::cout << buffer_.rest();
      print_outcome(std::cout, outcome);
    }
    outputs_.write(program, whole.last, whole.cost);
    watching_.finish();
    if (job_.flags.json) return;
    print_files(std::cout, job_.flags);
    print_early_stop(std::cout, outcome);
  }

 private:
  void begin_result() const {
    if (!result_mark_.empty()) std::ofstream(result_mark_).put('\n');
  }

  const TrainJob& job_;
  std::string result_mark_;
  TrainOutputs outputs_;
  Watching watching_;
  int place_;
  ProgressBuffer buffer_;
  std::ostream stream_;
  Progress progress_;
};

/// A few lines by the model as it is now.
std::string sample_of(const TrainJob& job, const Trainer& trainer, const Vocabulary& vocabulary) {
  constexpr std::int64_t kTokens = 200;
  constexpr double kTemperature = 0.8;
  Generator generator(
      job.model, 1, [&](const std::string& name) { return trainer.state().read(name).clone(); });
  const std::string prompt = plain_prompt(vocabulary);
  return prompt +
         continued(generator,
                   vocabulary,
                   prompt,
                   {.tokens = kTokens, .temperature = kTemperature, .seed = job.options.step.seed})
             .front();
}

/// Where the data is text, in the process that has it.
std::optional<TextOutcome> text_outcome(const TrainJob& job,
                                        const Trainer& trainer,
                                        bool has_all_weights) {
  const Dataset& data = job.data.test;
  if (data.windows.positions == 0) return std::nullopt;
  const std::string text = text_of_targets(data);
  TextOutcome outcome;
  outcome.padded = data.has_documents();
  outcome.gzip_bits =
      8.0 * static_cast<double>(gzipped_size(text)) / static_cast<double>(text.size());
  if (has_all_weights) outcome.sample = sample_of(job, trainer, *data.windows.vocabulary);
  return outcome;
}

/// Operations of the matrix multiplications of a sample; of documents the mean, without padding.
double operations_per_sample(const TrainJob& job) {
  const auto operations = [&](std::int64_t positions) {
    return training_operations(job.model, {.samples = 1, .positions = positions});
  };
  const Dataset& data = job.data.train;
  if (!data.has_documents()) return operations(job.positions());
  std::map<std::int64_t, std::int64_t> documents;  // by positions
  for (const Dataset::Document& document : *data.windows.documents) ++documents[document.positions];
  double sum = 0;
  for (const auto& [positions, count] : documents)
    sum += operations(positions) * static_cast<double>(count);
  return sum / static_cast<double>(data.size());
}

/// Measured after the ranks have ended.
ProductUse product_use(const TrainJob& job) {
  ProductUse use;
  use.operations_per_sample = operations_per_sample(job);
  const int threads = job.grid().processes() * job.options.run.executor_options.threads_per_rank;
  use.cores = std::min(threads, std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  if (use.operations_per_sample > 0) use.machine = product_rate(job.model.precision, use.cores);
  return use;
}

/// Passes the reports of the trainer to the measurement and, on rank 0, to the printer.
void listen(Trainer& trainer,
            RunMeasurement& measurement,
            std::optional<Printer>& printer,
            std::stop_source& stop) {
  trainer.on_step = [&](const StepReport& report) {
    measurement.after_step(report);
    if (StopSignals::received() != 0) stop.request_stop();
    if (printer) printer->progress().step(report, measurement.bubble());
  };
  trainer.on_pass = [&] {
    if (StopSignals::received() != 0) stop.request_stop();
  };
  if (!printer) return;
  trainer.on_gradients = [&](const GradientInspection& found) { printer->show(found); };
  trainer.on_validation = [&](const ValidationReport& report) { printer->validated(report); };
  trainer.on_epoch = [&](const EpochReport& epoch) { printer->progress().epoch(epoch); };
  trainer.on_record = [&](const StepRecord& record) { printer->watching().add(record); };
}

/// For a checkpoint without steps left.
TrainOutcome evaluate_finished(const TrainJob& job,
                               Trainer& trainer,
                               const TrainPlace& place,
                               std::optional<Printer>& printer) {
  TrainOutcome outcome;
  outcome.processes = place.processes;
  outcome.updates = trainer.global_step();
  outcome.score = trainer.evaluate(job.data.test);
  outcome.weights_hash = trainer.weights_hash();
  outcome.fit.early_stop =
      early_stop(job.options.validation, trainer.state().counters().validation);
  if (!printer) return outcome;
  outcome.text = text_outcome(job, trainer, place.endpoint == nullptr);
  printer->report_finished(outcome, trainer.state().counters().mini_batches);
  return outcome;
}

}  // namespace

bool stops_when_asked(const TrainJob& job) {
  return !job.options.save.folder.empty() || job.options.watch.records;
}

TrainOutcome run_training(const TrainJob& job, const TrainPlace& place) {
  const Rank rank = place.endpoint == nullptr ? Rank{0} : place.endpoint->rank();
  ProcessGroup alone;
  ProcessGroup& group = place.group == nullptr ? alone : *place.group;
  std::optional<Printer> printer;
  if (rank == Rank{0}) printer.emplace(job, place);
  Trainer trainer = trainer_of(job, place);
  begin_from(trainer, job.flags.start, printer.has_value());
  if (trainer.is_finished()) return evaluate_finished(job, trainer, place, printer);
  RunMeasurement measurement(job, trainer, group, rank);
  std::optional<StopSignals> signals;  // of a process; threads share them
  std::stop_source stop(std::nostopstate);
  if (stops_when_asked(job)) stop = std::stop_source();
  if (stops_when_asked(job) && !place.is_thread) signals.emplace();
  listen(trainer, measurement, printer, stop);
  TrainOutcome outcome;
  trainer.on_save = [&](const SaveReport& report) {
    // Else the exception that follows reports it.
    const bool continues = report.after_failure || job.options.save.errors == SaveErrors::Continue;
    outcome.checkpoints.add(report, printer && (continues || report.fault.empty()));
  };
  outcome.processes = place.processes;
  if (place.processes > 0) outcome.places = place.endpoint->world() / place.processes;
  if (printer) printer->begin(trainer);
  try {
    const Dataset& held = job.data.validation;
    outcome.fit = trainer.fit(job.data.train, stop.get_token(), held.size() > 0 ? &held : nullptr);
  } catch (...) {
    if (printer) printer->watching().finish_failed();
    throw;
  }
  if (outcome.fit.stopped) {
    if (printer) printer->watching().finish();
    end_stopped(trainer.state().counters(), outcome.checkpoints, printer.has_value());
  }
  outcome.updates = trainer.global_step();
  outcome.score = trainer.evaluate(job.data.test);
  outcome.weights_hash = trainer.weights_hash();
  const RunMeasurement::Whole whole = measurement.gather(outcome, place.endpoint);
  if (printer) outcome.text = text_outcome(job, trainer, place.endpoint == nullptr);
  if (printer) outcome.products = product_use(job);
  if (printer) printer->report(outcome, trainer.executor().program(), whole);
  require_update(outcome.fit, printer.has_value());
  require_saved(outcome.checkpoints, printer.has_value());
  return outcome;
}

}  // namespace millrace::cli
