// Whether a pipeline computes what plain gradient accumulation in one thread does: bit for bit, or
// the first tensor that differs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/scheduler/plan/program.hpp"
#include "millrace/stages/models.hpp"
#include "millrace/training/dataset.hpp"
#include "millrace/training/trainer_options.hpp"

namespace millrace {

/// The first number with other bits.
struct SequentialDifference {
  std::int64_t step = 0;  ///< counted from 1; 0: before the first
  std::string tensor;     ///< a parameter's global name; "loss"
  std::string part;       ///< "gradient" (before clipping), "value" (after the update), "sum"
  std::int64_t index = 0;
  std::int64_t elements = 0;  ///< of the tensor that differ
  double sequential = 0;
  double pipeline = 0;
};

/// What verify_against_sequential found.
struct SequentialComparison {
  std::int64_t steps = 0;  ///< that were run
  /// In each step first the loss, then gradients, then values, by name; empty: all bits are equal.
  std::optional<SequentialDifference> first = {};

  [[nodiscard]] bool same() const { return !first; }
};

/// Trains `steps` steps over `batch`, all of it a mini-batch, twice: through the pipeline that
/// `pipeline` asks for, and by a loop that runs one micro-batch after the other forwards and
/// backwards through the whole model, and shares no code with plans and executors. Compares the
/// loss, every gradient and every value after each step, until something differs.
///
///     const auto found = verify_against_sequential(model, {.schedule = "zb-v"}, first_samples);
///     if (!found.same()) std::cout << to_string(found) << '\n';
///
/// Throws InvalidArgument for tied weights, which this loop does not know, and what a Trainer
/// throws. Cost: that of 2 x `steps` steps.
[[nodiscard]] SequentialComparison verify_against_sequential(const ModelSpec& model,
                                                             const PipelineOptions& pipeline,
                                                             const Dataset& batch,
                                                             const TrainerOptions& options = {},
                                                             int steps = 3);

/// Makes the stages of a pipeline, in their order, every time alike.
using MakeStages = std::function<std::vector<std::unique_ptr<StageBody>>()>;

/// The same for stages of yours, in a chain: `make` is called once for each of the two, and a
/// program that hosts every stage once runs them. Throws InvalidArgument for another program.
[[nodiscard]] SequentialComparison verify_against_sequential(const Program& program,
                                                             const MakeStages& make,
                                                             const Dataset& batch,
                                                             const TrainerOptions& options = {},
                                                             int steps = 3);

/// "the same bits after 3 steps", or where the first difference is, with both values.
[[nodiscard]] std::string to_string(const SequentialComparison& comparison);

}  // namespace millrace
