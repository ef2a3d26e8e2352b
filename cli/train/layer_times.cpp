// Every layer becomes a stage of its own, and the ordinary profile says how long it takes.
#include "cli/train/layer_times.hpp"

#include <algorithm>
#include <numeric>

#include "millrace/training/measurement.hpp"
#include "millrace/training/trainer.hpp"

namespace millrace::cli {

std::vector<double> layer_seconds(const ModelSpec& model,
                                  const Dataset& data,
                                  std::int64_t micro_batch_size) {
  constexpr int kSteps = 12;
  TrainerOptions options;
  options.ranks = model.layer_count();
  options.schedule = "gpipe";
  options.executor = "sequential";
  options.micro_batches = 1;
  Trainer trainer(model, options);
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

}  // namespace millrace::cli
