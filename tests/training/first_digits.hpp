// Small jobs on the first of the built-in digits.
#pragma once

#include <numeric>
#include <vector>

#include "millrace/training/dataset.hpp"
#include "millrace/training/trainer.hpp"
#include "support/test_options.hpp"

namespace millrace::testing_training {

/// `n` of them, beginning with number `from`.
inline Dataset first_digits(int n, int from = 0) {
  std::vector<std::int32_t> rows(static_cast<std::size_t>(n));
  std::iota(rows.begin(), rows.end(), from);
  return select_rows(digits(), rows);
}

/// Plain gradient descent, one update a step.
inline TestOptions plain_options(int ranks, int micro_batches) {
  TestOptions options;
  options.pipeline.shape.ranks = ranks;
  options.pipeline.shape.micro_batches = micro_batches;
  options.run.executor = "sequential";
  options.step.optimizer.kind = OptimizerKind::Sgd;
  options.step.learning_rate.base = 0.5;
  return options;
}

inline const char* const kModel = "mlp:64-20-16-10";

}  // namespace millrace::testing_training
