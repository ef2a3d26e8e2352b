// millrace train: trains a model through a pipeline in one process, and says what it measured
// beside what the plan predicted.
#include <memory>

#include "cli/train/copies.hpp"
#include "cli/train/options.hpp"
#include "cli/train/run.hpp"
#include "cli/verbs.hpp"
#include "cli/vocabulary.hpp"
#include "millrace/core/error.hpp"

namespace millrace::cli {

namespace {

void refuse_other_executors(const CLI::App& verb, const TrainFlags& flags) {
  require(verb.get_option("--executor")->count() == 0 || flags.executor == "ranks",
          "--executor " + flags.executor + ": with " + flag("data_parallel") + " " +
              std::to_string(flags.data_parallel) +
              " every place of every copy has a thread of its own, as with --executor ranks");
}

}  // namespace

void add_train(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("train", "Train a model through a pipeline in one process");
  // Shared with the callback, which runs after this function has returned.
  auto flags = std::make_shared<TrainFlags>();
  add_train_flags(*verb, *flags);
  verb->callback([verb, flags] {
    if (!flags->config.empty()) read_config(*verb, flags->config);
    take_settings(*verb, flags->checkpoints);
    const TrainJob job = make_job(*verb, *flags);
    if (job.grid().data() == 1) {
      run_training(job);
      return;
    }
    refuse_other_executors(*verb, *flags);
    run_copies(job);
  });
}

}  // namespace millrace::cli
