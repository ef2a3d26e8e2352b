// Replays the trees of sums of every rank's stages along its list.
#include <algorithm>
#include <limits>
#include <string>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/verify.hpp"
#include "plan/model/tree_replay.hpp"
#include "plan/model/validate.hpp"

namespace millrace {

namespace {

void require_countable(const Program& program,
                       const std::vector<std::size_t>& gradient_bytes,
                       int passes) {
  plan::validate(program);
  const Shape& shape = program.shape;
  require(shape.replicas() == 1, [&] {
    return "gradients are added by a tree where a pipeline has one copy of each stage; the program "
           "has " +
           std::to_string(shape.replicas());
  });
  require(gradient_bytes.size() == static_cast<std::size_t>(shape.stages()), [&] {
    return "gradients are given of " + std::to_string(gradient_bytes.size()) +
           " stages; the program has " + std::to_string(shape.stages());
  });
  require(passes >= 1 && passes <= std::numeric_limits<int>::max() / shape.micro_batches, [&] {
    return "a step of " + std::to_string(passes) + " passes of " +
           std::to_string(shape.micro_batches) +
           " micro-batches cannot be counted; expected at least 1 and at most 2147483647 "
           "micro-batches in all";
  });
}

}  // namespace

PartialSumCount partial_sums(const Program& program,
                             const std::vector<std::size_t>& gradient_bytes,
                             int passes) {
  require_countable(program, gradient_bytes, passes);
  const Shape& shape = program.shape;
  const plan::TreeReplay fresh(passes * shape.micro_batches, shape.slices);
  std::vector<plan::TreeReplay> trees(gradient_bytes.size(), fresh);
  PartialSumCount most{.of_stage = std::vector<int>(gradient_bytes.size(), 0),
                       .rank_bytes = std::vector<std::size_t>(program.ranks.size(), 0)};
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    std::size_t bytes = 0;
    for (int pass = 0; pass < passes; ++pass)
      for (const Action& action : program.ranks[rank]) {
        if (!gives_weight_gradient(action.op)) continue;
        const std::size_t stage = action.stage.index();
        const plan::SumsHeld held =
            trees[stage].pass(pass * shape.micro_batches + action.micro_batch.value);
        const int peak = std::max({held.opening, held.during, held.joining});
        const auto of_sums = [&](int count) {
          return static_cast<std::size_t>(count) * gradient_bytes[stage];
        };
        bytes -= of_sums(held.before);
        most.of_stage[stage] = std::max(most.of_stage[stage], peak);
        most.rank_bytes[rank] = std::max(most.rank_bytes[rank], bytes + of_sums(peak));
        bytes += of_sums(held.after);
      }
  }
  return most;
}

}  // namespace millrace
