// Checks of bodies and pipelines: gradients against central differences, and a pipeline against
// plain accumulation in one thread, bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/core/tensor_list.hpp"
#include "millrace/scheduler/plan/program.hpp"
#include "millrace/stages/models.hpp"
#include "millrace/stages/stage.hpp"
#include "millrace/training/dataset.hpp"
#include "millrace/training/trainer_options.hpp"

namespace millrace {

struct GradientCheckOptions {
  std::uint64_t seed = 1;  ///< of the gradients that the check gives the outputs, and of dropout
  /// Of each tensor, evenly spread; 0: all.
  std::int64_t elements = 64;
  /// Of the tensor's largest gradient; none given: 1e-6 where all tensors are f64, else 1e-2.
  std::optional<double> tolerance = {};
};

/// One parameter or input.
struct TensorCheck {
  std::string name;           ///< of the parameter; "input 0"
  std::int64_t elements = 0;  ///< that were compared
  /// Largest |backward - difference| over the elements, relative to the largest of either.
  double error = 0;
  // Where that is:
  std::int64_t index = 0;
  double backward = 0;    ///< what the passes gave
  double difference = 0;  ///< (J(x + h) - J(x - h)) / 2h
  bool holds = true;
};

/// What check_gradients found.
struct GradientCheck {
  std::vector<TensorCheck> tensors;  ///< parameters in the stage's order, then inputs
  /// Sentences about what else is not as StageBody says.
  std::vector<std::string> faults;

  [[nodiscard]] bool holds() const;
  /// The tensor with the largest error; null when there is none.
  [[nodiscard]] const TensorCheck* worst() const;
};

/// Compares what the stage's backward gives with central differences of its forward, in the
/// precision that it has, for one unit with these inputs.
///
/// J is the loss that the forward adds where `targets` are given (the last stage), else the sum of
/// all outputs, each times a number in [-1, 1) that the seed decides: any error of one element
/// shows. Each element x moves by h = 4e-3 (f64: 6e-6) times max(1, |x|) and by h / 4; the nearer
/// of the two differences counts, so that a bend of the function (relu) between x - h and x + h
/// does no harm. Also looked at: that backward_weight adds to gradients, that `backward` gives the
/// bits of its two halves, and that nothing stays stashed.
///
///     const GradientCheck check = check_gradients(stage, inputs);
///     if (!check.holds()) std::cout << to_string(check);
///
/// Values stay as they are; gradients are zero at the end. Every output counts as used once; inputs
/// of integers, and those for which the stage gives no gradient, are left out. Throws
/// InvalidArgument for a stage whose outputs are neither f32 nor f64, and what the stage throws.
/// Cost: 4 forward passes for each element compared.
[[nodiscard]] GradientCheck check_gradients(StageBody& stage,
                                            const TensorList& inputs,
                                            const TensorList& targets = {},
                                            const GradientCheckOptions& options = {});

/// A line for every tensor, then the faults.
[[nodiscard]] std::string to_string(const GradientCheck& check);

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
