// millrace train: trains a model through a pipeline in one process, and says what it measured
// beside what the plan predicted.
#include <algorithm>
#include <iostream>
#include <memory>
#include <unistd.h>
#include <variant>

#include "cli/standard_streams.hpp"
#include "cli/train/options.hpp"
#include "cli/train/outputs.hpp"
#include "cli/train/progress.hpp"
#include "cli/train/report.hpp"
#include "cli/verbs.hpp"
#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/graph.hpp"
#include "millrace/training/measurement.hpp"
#include "millrace/training/trainer.hpp"

namespace millrace::cli {

namespace {

/// One run, from the job to its outcome.
class TrainRun {
 public:
  explicit TrainRun(TrainJob job)
      : job_(std::move(job)),
        outputs_(job_.flags),
        progress_buffer_(job_.flags.json ? STDERR_FILENO : STDOUT_FILENO),
        progress_stream_(&progress_buffer_),
        trainer_(job_.model, job_.program, job_.options),
        profile_(trainer_.executor().program()),
        progress_(progress_stream_,
                  isatty(job_.flags.json ? STDERR_FILENO : STDOUT_FILENO) == 1,
                  job_.epochs()) {
    outcome_.peak_counted.resize(static_cast<std::size_t>(job_.program.shape.ranks));
    trainer_.on_step = [this](const StepReport& report) { after_step(report); };
    trainer_.on_epoch = [this](const EpochReport& report) { progress_.epoch(report); };
  }

  void run() {
    outcome_.fit = trainer_.fit(job_.data.train);
    outcome_.updates = trainer_.global_step();
    outcome_.score = trainer_.evaluate(job_.data.test);
    outcome_.weights_hash = trainer_.weights_hash();
    measure();
    const bool json = job_.flags.json;
    if (json) {
      std::cout << outcome_json(job_, outcome_);
    } else {
      std::cout << progress_buffer_.rest();
      print_outcome(std::cout, outcome_);
    }
    outputs_.write(trainer_.executor().program(), last_, cost_);
    if (!json) print_files(std::cout, job_.flags);
  }

 private:
  void after_step(const StepReport& report) {
    const Timeline& timeline = trainer_.executor().timeline();
    for (std::size_t rank = 0; rank < report.peak_stash_bytes.size(); ++rank)
      outcome_.peak_counted[rank] =
          std::max(outcome_.peak_counted[rank], report.peak_stash_bytes[rank]);
    progress_.step(report, step_use(trainer_.executor().program(), timeline).bubble());
    if (report.samples != job_.full_batch()) return;
    // The first step pays for memory and caches; it counts only when there is no other.
    if (steps_seen_++ == 1) profile_ = Profile(trainer_.executor().program());
    profile_.add(timeline);
    last_ = timeline;
  }

  void measure() {
    const Program& program = trainer_.executor().program();
    const auto sizes = micro_batch_sizes(job_.full_batch(), program.shape.micro_batches);
    outcome_.peak_predicted = predict_stash_peaks(program, trainer_.stages(), sizes);
    cost_ = profile_.cost(trainer_.stages(), sizes.front());
    outcome_.measured = profile_.use();
    const Graph graph(program);
    const auto simulated = simulate(graph, cost_);
    outcome_.simulated = step_use(program, std::get<Timeline>(simulated));
  }

  TrainJob job_;
  TrainOutputs outputs_;
  ProgressBuffer progress_buffer_;
  std::ostream progress_stream_;
  Trainer trainer_;
  Profile profile_;
  Progress progress_;
  TrainOutcome outcome_;
  Timeline last_;
  Cost cost_;
  std::int64_t steps_seen_ = 0;
};

}  // namespace

void add_train(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("train", "Train a model through a pipeline in one process");
  // Shared with the callback, which runs after this function has returned.
  auto flags = std::make_shared<TrainFlags>();
  add_train_flags(*verb, *flags);
  verb->callback([verb, flags] {
    if (!flags->config.empty()) read_config(*verb, flags->config);
    TrainRun(make_job(*verb, *flags)).run();
  });
}

}  // namespace millrace::cli
