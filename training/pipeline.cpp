// From a model and options to the parts of a trainer: program, stages, executors.
#include "training/pipeline.hpp"

#include <string>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/stages/partition.hpp"

namespace millrace {

Program forward_program(const Shape& shape) {
  Program program;
  program.shape = shape;
  program.shape.forward_only = true;
  program.shape.replica_of.clear();
  program.name = "forward";
  program.ranks.resize(static_cast<std::size_t>(shape.ranks));
  for (int micro_batch = 0; micro_batch < shape.micro_batches; ++micro_batch)
    for (int slice = 0; slice < shape.slices; ++slice)
      for (int stage = 0; stage < shape.stages(); ++stage) {
        Action action;
        action.stage = Stage{stage};
        action.micro_batch = MicroBatch{micro_batch};
        action.slice = Slice{slice};
        program.ranks[shape.rank(Replica{0}, action.stage).index()].push_back(action);
      }
  return program;
}

Program training_program(const TrainerOptions& options) {
  ScheduleOptions wanted;
  wanted.ranks = options.ranks;
  wanted.micro_batches = options.micro_batches;
  wanted.chunks = options.chunks;
  return generate(options.schedule, wanted);
}

void require_chain(const Shape& shape) {
  require(shape.edges.empty(),
          "the stages of the plan are no chain, but the layers of the model are; such a plan runs"
          " with stages of your own");
}

std::vector<std::unique_ptr<StageBody>> model_bodies(const ModelSpec& model,
                                                     const Shape& shape,
                                                     const TrainerOptions& options) {
  require_chain(shape);
  const std::vector<int> boundaries = options.boundaries.empty()
                                          ? even_boundaries(model.layer_count(), shape.stages())
                                          : options.boundaries;
  require(static_cast<int>(boundaries.size()) == shape.stages() + 1,
          "the schedule has " + std::to_string(shape.stages()) + " stages, so the cut needs " +
              std::to_string(shape.stages() + 1) + " boundaries, got " +
              std::to_string(boundaries.size()));
  std::vector<std::unique_ptr<StageBody>> bodies;
  for (int replica = 0; replica < shape.replicas(); ++replica)
    for (auto& stage : build_stages(model, boundaries, options.seed))
      bodies.push_back(std::move(stage));
  return bodies;
}

TrainerParts assemble(const Program& compute,
                      std::vector<std::unique_ptr<StageBody>> bodies,
                      const TrainerOptions& options) {
  const Shape& shape = compute.shape;
  require(!shape.forward_only, "a forward-only program cannot train");
  const std::size_t expected =
      static_cast<std::size_t>(shape.stages()) * static_cast<std::size_t>(shape.replicas());
  require(bodies.size() == expected,
          "the program needs " + std::to_string(expected) + " stage bodies, got " +
              std::to_string(bodies.size()));
  TrainerParts parts;
  auto body = bodies.begin();
  for (int replica = 0; replica < shape.replicas(); ++replica)
    for (int stage = 0; stage < shape.stages(); ++stage)
      parts.stages.push_back({Replica{replica}, Stage{stage}, (body++)->get()});
  parts.bodies = std::move(bodies);
  const Program program = options.recompute ? insert_recompute(compute) : compute;
  parts.executor = make_executor(options.executor, program, parts.stages, options.executor_options);
  parts.evaluator = make_executor(
      options.executor, forward_program(shape), parts.stages, options.executor_options);
  return parts;
}

}  // namespace millrace
