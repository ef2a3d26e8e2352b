// millrace train: trains a model through a pipeline in one process, and says what it measured
// beside what the plan predicted.
#include <memory>

#include "cli/train/options.hpp"
#include "cli/train/run.hpp"
#include "cli/verbs.hpp"

namespace millrace::cli {

void add_train(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("train", "Train a model through a pipeline in one process");
  // Shared with the callback, which runs after this function has returned.
  auto flags = std::make_shared<TrainFlags>();
  add_train_flags(*verb, *flags);
  verb->callback([verb, flags] {
    if (!flags->config.empty()) read_config(*verb, flags->config);
    take_settings(*verb, flags->checkpoints);
    run_training(make_job(*verb, *flags));
  });
}

}  // namespace millrace::cli
