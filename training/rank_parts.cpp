// See rank_parts.hpp.
#include "millrace/training/rank_parts.hpp"

#include <string>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/stages/partition.hpp"
#include "training/pipeline.hpp"

namespace millrace {

namespace {

/// The (replica, stage) pairs of a rank, without bodies.
std::vector<HostedStage> places_of(const Shape& shape, Rank rank) {
  std::vector<HostedStage> places;
  for (int replica = 0; replica < shape.replicas(); ++replica)
    for (int stage = 0; stage < shape.stages(); ++stage)
      if (shape.rank(Replica{replica}, Stage{stage}) == rank)
        places.push_back({Replica{replica}, Stage{stage}, nullptr});
  return places;
}

}  // namespace

TrainerParts rank_parts(const Program& program,
                        std::vector<std::unique_ptr<StageBody>> bodies,
                        const TrainerOptions& options,
                        Endpoint& endpoint,
                        Team& team) {
  require(program.shape.ranks == endpoint.world(),
          "the program has " + std::to_string(program.shape.ranks) + " ranks, but there are " +
              std::to_string(endpoint.world()) + " processes");
  require(!program.shape.forward_only, "a forward-only program cannot train");
  TrainerParts parts;
  parts.stages = places_of(program.shape, endpoint.rank());
  require(bodies.size() == parts.stages.size(),
          "rank " + std::to_string(endpoint.rank().value) + " hosts " +
              std::to_string(parts.stages.size()) + " stages, got " +
              std::to_string(bodies.size()) + " bodies");
  for (std::size_t i = 0; i < bodies.size(); ++i) parts.stages[i].body = bodies[i].get();
  parts.bodies = std::move(bodies);
  parts.team = &team;
  const Program complete = options.recompute ? insert_recompute(program) : program;
  parts.executor = make_rank_executor(complete, parts.stages, endpoint, options.executor_options);
  parts.evaluator = make_rank_executor(
      forward_program(program.shape), parts.stages, endpoint, options.executor_options);
  return parts;
}

TrainerParts rank_parts(const ModelSpec& model,
                        const Program& program,
                        const TrainerOptions& options,
                        Endpoint& endpoint,
                        Team& team) {
  require_chain(program.shape);
  const std::vector<int> boundaries =
      options.boundaries.empty() ? even_boundaries(model.layer_count(), program.shape.stages())
                                 : options.boundaries;
  std::vector<std::unique_ptr<StageBody>> bodies;
  for (const HostedStage& place : places_of(program.shape, endpoint.rank()))
    bodies.push_back(build_stage(model, boundaries, place.stage.value, options.seed));
  return rank_parts(program, std::move(bodies), options, endpoint, team);
}

}  // namespace millrace
