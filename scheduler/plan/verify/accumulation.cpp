// In which order each stage adds its weight gradients: floating-point sums keep their bits only
// when the order is the sequential one.
#include <string>

#include "millrace/scheduler/plan/verify.hpp"
#include "plan/model/validate.hpp"

namespace millrace {

Accumulation accumulation(const Program& program) {
  plan::validate(program);
  const auto stages = static_cast<std::size_t>(program.shape.stages());
  const std::size_t copies = stages * static_cast<std::size_t>(program.shape.replicas());
  // Ascending micro-batches; inside one, descending slices.
  std::vector<Unit> last(copies, {MicroBatch{-1}, Slice{0}});
  std::vector<bool> accumulates(copies, false);
  Accumulation result;
  for (const auto& list : program.ranks)
    for (const Action& action : list) {
      if (!gives_weight_gradient(action.op)) continue;
      const std::size_t copy = action.replica().index() * stages + action.stage.index();
      const Unit before = last[copy];
      const Unit unit = action.unit();
      last[copy] = unit;
      accumulates[copy] = true;
      const bool ascends = unit.micro_batch > before.micro_batch ||
                           (unit.micro_batch == before.micro_batch && unit.slice < before.slice);
      if (ascends || (result.broken && *result.broken <= action.stage)) continue;
      result = {false,
                action.stage,
                "stage " + std::to_string(action.stage.value) + " adds the gradient of " +
                    to_string(action) + " after that of micro-batch " +
                    std::to_string(before.micro_batch.value)};
    }
  for (std::size_t copy = stages; copy < copies; ++copy) {
    const auto stage = static_cast<std::int32_t>(copy % stages);
    if (!accumulates[copy] || !accumulates[copy % stages]) continue;
    if (result.broken && result.broken->value <= stage) continue;
    result = {
        false,
        Stage{stage},
        "stage " + std::to_string(stage) + " adds two partial sums, one of each of its copies"};
  }
  if (result.ascending) result.message = "every stage adds its gradients in ascending order";
  return result;
}

}  // namespace millrace
