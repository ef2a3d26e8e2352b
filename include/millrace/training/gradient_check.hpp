// Whether the backward passes of a stage are the derivative of its forward pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "millrace/core/tensor_list.hpp"
#include "millrace/stages/stage.hpp"

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

}  // namespace millrace
