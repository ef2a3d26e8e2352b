// A residual network on the digits, trained for some epochs: what a short test and a long one
// share.
#pragma once

#include <cstdint>

#include "millrace/training/trainer.hpp"

namespace millrace::testing_training {

/// The mean accuracy on the test digits after so many epochs, of seeds 1 to `seeds`.
inline double accuracy_of_residual_networks(std::uint64_t seeds, std::int64_t epochs) {
  double sum = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    TrainerOptions options;
    options.optimizer = optimizer_defaults(OptimizerKind::AdamW);
    options.learning_rate = {.kind = LearningRateKind::Cosine, .base = 3e-3, .warm_up = 44};
    options.clip_norm = 1;
    options.batch_size = 64;
    options.epochs = epochs;
    options.seed = seed;
    const TrainTest data = load_data("digits", seed);
    Trainer trainer(parse_model("conv:8x8x1-16-32-10"), options);
    trainer.fit(data.train);
    sum += trainer.evaluate(data.test).accuracy();
  }
  return sum / static_cast<double>(seeds);
}

}  // namespace millrace::testing_training
