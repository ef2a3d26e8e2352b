// A stage made of functions: for a model that somebody else wrote, where a class would only pass
// calls on.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "millrace/stages/stage.hpp"

namespace millrace {

/// The passes of a stage as functions, with the meaning that StageBody gives them. `kept` belongs
/// to the unit: what the forward puts there, the backward passes find (and may exchange); it is
/// counted as stash, and empty again after the unit's last pass. In evaluation it is thrown away.
struct StageFunctions {
  std::function<TensorList(const PassContext& context, TensorList inputs, TensorList& kept)>
      forward;
  std::function<TensorList(const PassContext& context, TensorList gradients, TensorList& kept)>
      backward_input;
  /// Absent: backward_input does all of it, and the stage does not split its backward.
  std::function<void(const PassContext& context, TensorList& kept)> backward_weight = {};
};

/// A stage of those functions with the given parameters, which must outlive it. With recompute it
/// keeps a copy of its inputs and calls `forward` a second time. Throws InvalidArgument when one of
/// the first two functions is absent.
///
///     Parameter w{.name = "w", .value = ..., .gradient = ...};
///     auto scale = make_stage(
///         {.forward = [&](const PassContext&, TensorList inputs, TensorList& kept) { ... },
///          .backward_input = [&](const PassContext&, TensorList gradients, TensorList& kept) { ...
///          }, .backward_weight = [&](const PassContext&, TensorList& kept) { ... }},
///         {&w});
[[nodiscard]] std::unique_ptr<StageBody> make_stage(StageFunctions functions,
                                                    std::vector<Parameter*> parameters = {});

}  // namespace millrace
