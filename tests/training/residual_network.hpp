// A residual network on the digits, trained for some epochs: what a short test and a long one
// share.
#pragma once

#include <cstdint>

#include "millrace/training/trainer.hpp"
#include "support/test_options.hpp"

namespace millrace::testing_training {

/// The mean accuracy on the test digits after so many epochs, of seeds 1 to `seeds`.
inline double accuracy_of_residual_networks(std::uint64_t seeds, std::int64_t epochs) {
  double sum = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    TestOptions options;
    options.step.optimizer = optimizer_defaults(OptimizerKind::AdamW);
    options.step.learning_rate = {.kind = LearningRateKind::Cosine, .base = 3e-3, .warm_up = 44};
    options.step.clip_norm = 1;
    options.fit.batch_size = 64;
    options.fit.epochs = epochs;
    options.step.seed = seed;
    const TrainTest data = load_data("digits", seed);
    Trainer trainer(parse_model("conv:8x8x1-16-32-10"), options.pipeline, options);
    trainer.fit(data.train);
    sum += trainer.evaluate(data.test).accuracy();
  }
  return sum / static_cast<double>(seeds);
}

}  // namespace millrace::testing_training
