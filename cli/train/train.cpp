// millrace train: trains a model through a pipeline in one process.
#include <fmt/format.h>
#include <iostream>
#include <memory>
#include <optional>
#include <vector>

#include "cli/subcommands.hpp"
#include "cli/train/options.hpp"
#include "cli/train/run.hpp"
#include "cli/train/side_by_side.hpp"
#include "cli/train/stop_signals.hpp"
#include "cli/vocabulary.hpp"
#include "millrace/core/error.hpp"
#include "millrace/training/ranks.hpp"
#include "millrace/transport/in_process.hpp"

namespace millrace::cli {

namespace {

/// As run_training, with a thread for every rank of the grid. Throws the error of the rank that
/// failed first.
void run_replicas(const TrainJob& job) {
  const auto executor = job.given.find("executor");
  if (executor != job.given.end() && executor->second != "ranks")
    throw InvalidArgument(fmt::format(
        "--executor {}: with {} {} every place of every copy has a thread of its own, as with "
        "--executor ranks",
        executor->second,
        flag("data_parallel"),
        job.flags.data_parallel));
  const Grid grid = job.grid();
  std::optional<StopSignals> signals;
  if (stops_when_asked(job)) signals.emplace();
  InProcessHub hub(grid.processes(),
                   on_grid(channel_depths(job.model, job.plan(), job.options), grid));
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  for (int rank = 0; rank < grid.processes(); ++rank) endpoints.push_back(hub.endpoint(Rank{rank}));
  const PlaceWork train = [&](Endpoint& endpoint, ProcessGroup& group) {
    run_training(job, {.endpoint = &endpoint, .group = &group, .is_thread = true});
  };
  side_by_side(grid.processes(), [&](int rank) {
    Endpoint& endpoint = *endpoints[static_cast<std::size_t>(rank)];
    ProcessGroup group(endpoint);
    work_and_leave(endpoint, group, train, true);
  });
}

}  // namespace

void add_train(CLI::App& app) {
  CLI::App* subcommand =
      app.add_subcommand("train", "Train a model through a pipeline in one process");
  // Shared with the callback, which runs after this function has returned.
  auto flags = std::make_shared<TrainFlags>();
  add_train_flags(*subcommand, *flags);
  subcommand->callback([subcommand, flags] {
    if (!flags->config.empty()) read_config(*subcommand, flags->config);
    take_settings(*subcommand, flags->start);
    const TrainJob job = make_job(*subcommand, *flags);
    if (flags->dry_run)
      dry_run(std::cout, job);
    else if (job.grid().data() == 1)
      run_training(job);
    else
      run_replicas(job);
  });
}

}  // namespace millrace::cli
