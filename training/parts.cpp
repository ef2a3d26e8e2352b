// From a model and options to the parts of a trainer: program, stages, executors.
#include "training/parts.hpp"

#include <algorithm>
#include <bit>
#include <fmt/format.h>
#include <string>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/stages/partition.hpp"
#include "millrace/training/ranks.hpp"
#include "millrace/training/trainer_options.hpp"
#include "training/channel_depths.hpp"
#include "training/lone_values.hpp"
#include "training/optimizer_shards.hpp"
#include "training/ties.hpp"

namespace millrace {
namespace {

/// The (replica, stage) pairs at the seat, without bodies.
std::vector<HostedStage> places_at(const Seat& seat, const Shape& shape) {
  std::vector<HostedStage> places;
  for (int replica = 0; replica < shape.replicas(); ++replica)
    for (int stage = 0; stage < shape.stages(); ++stage)
      if (seat.of_grid.hosts(shape.rank(Replica{replica}, Stage{stage})))
        places.push_back({Replica{replica}, Stage{stage}, nullptr});
  return places;
}

std::string owner_of(const Seat& seat) {
  if (seat.of_grid.endpoint() == nullptr) return "the program";
  return "rank " + std::to_string(seat.of_grid.place().value);
}

std::unique_ptr<Executor> executor_at(const Seat& seat,
                                      const Program& program,
                                      std::span<const HostedStage> stages,
                                      const RunOptions& options) {
  if (seat.of_grid.endpoint() == nullptr)
    return make_executor(
        executor_kind(options.executor), program, stages, options.executor_options);
  return make_rank_executor(program, stages, seat.of_grid, options.executor_options);
}

/// From 0 to the number of layers.
std::vector<int> boundaries_of(const ModelSpec& model, const Plan& plan) {
  const int stages = plan.program.shape.stages();
  if (plan.boundaries.empty()) return even_boundaries(model, stages);
  require(std::ssize(plan.boundaries) + 1 == stages, [&] {
    return fmt::format("the schedule has {} stages, so the partition needs {} boundaries, got {}",
                       stages,
                       stages - 1,
                       plan.boundaries.size());
  });
  std::vector<int> boundaries = {0};
  boundaries.insert(boundaries.end(), plan.boundaries.begin(), plan.boundaries.end());
  boundaries.push_back(model.layer_count());
  return boundaries;
}

/// The program of stages of the user's own, which recompute whole.
Program with_recompute(const Program& program, const Recompute& recompute) {
  if (recompute.kind == RecomputeKind::None) return program;
  const bool whole =
      recompute.kind == RecomputeKind::All || recompute.kind == RecomputeKind::Stages;
  require(whole, [&] {
    return "recompute '" + to_string(recompute) +
           "' chooses layers of a model; stages of your own recompute whole";
  });
  const std::string own = describe_recompute(program);
  require(own == "none", [&] {
    return "recompute '" + to_string(recompute) + "': the plan recomputes " + own +
           " by itself; leave it out";
  });
  return insert_recompute(program,
                          parse_recompute_stages(to_string(recompute), program.shape.stages()));
}

/// Whether the longest sequence is known, where there are sequences.
bool knows_positions(const ModelSpec& model) {
  return model.context > 0 || std::ranges::none_of(model.inputs, [](const TensorType& input) {
           return std::ranges::find(input.dims, kPositions) != input.dims.end();
         });
}

/// The largest unit of a mini-batch, to predict for.
UnitSize micro_batch_of(const ModelSpec& model,
                        const Shape& shape,
                        const TrainerOptions& options,
                        int copies) {
  require(options.run.recompute.kind != RecomputeKind::Auto || knows_positions(model),
          "recompute auto cannot know the length of the sequences that the model takes; choose "
          "all, every-K or selective:LAYERS");
  const std::int64_t count = std::int64_t{copies} * options.step.accumulate * shape.micro_batches;
  return {
      .samples = (options.fit.batch_size + count - 1) / count,
      .positions = (std::max<std::int64_t>(1, model.context) + shape.slices - 1) / shape.slices};
}

/// The program with the edges that the model has across the cut.
Program with_edges(Program program, const ModelSpec& model, std::span<const int> boundaries) {
  std::vector<StageEdge> edges;
  for (const CutEdge& edge : cut_edges(model, boundaries))
    edges.push_back({Stage{edge.from}, edge.output, Stage{edge.to}, edge.input});
  require(
      program.shape.edges.empty() || std::ranges::is_permutation(program.shape.edges, edges),
      "the edges of the plan are not those of the model at this cut; leave them out of the plan,"
      " or run it with stages of your own");
  program.shape.edges = std::move(edges);
  return program;
}

}  // namespace

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

Plan plan_of(const PipelineOptions& pipeline) {
  return {generate(pipeline.schedule, pipeline.shape), pipeline.boundaries};
}

void check_passes(const StepOptions& options, const Shape& shape) {
  constexpr int kMostMicroBatches = 1'000'000'000;
  const int most = kMostMicroBatches / shape.micro_batches;
  require(options.accumulate >= 1 && options.accumulate <= most,
          named("accumulate") + " must be from 1 to " + std::to_string(most) + " passes of " +
              std::to_string(shape.micro_batches) + " micro-batches, got " +
              std::to_string(options.accumulate));
  require(
      options.accumulate_order == AccumulateOrder::Ascending || shape.replicas() == 1,
      named("accumulate_order") + " tree: a pipeline with " + std::to_string(shape.replicas()) +
          " copies of each stage adds up what each copy has; take ascending, or another schedule");
}

void check_copies(const StepOptions& options, const Grid& grid) {
  const auto copies = static_cast<unsigned>(grid.data());
  require(options.accumulate_order == AccumulateOrder::Ascending || std::has_single_bit(copies),
          named("accumulate_order") + " tree: " + std::to_string(copies) +
              " copies of the pipeline are no node of the tree each; " +
              std::to_string(std::bit_floor(copies)) + " and " +
              std::to_string(std::bit_ceil(copies)) + " would be; or take ascending");
}

TrainerParts assemble(const Plan& plan,
                      Bodies bodies,
                      const TrainerOptions& options,
                      const Seat& seat) {
  const Shape& shape = plan.program.shape;
  require(!shape.forward_only, "a forward-only program cannot train");
  require(plan.boundaries.empty(),
          "boundaries partition the layers of a model; a trainer of stages has its partition by "
          "them");
  const int processes = seat.of_grid.grid().pipeline();
  require(seat.of_grid.endpoint() == nullptr || shape.ranks == processes, [&] {
    return fmt::format(
        "the program has {} ranks, but there are {} processes", shape.ranks, processes);
  });
  TrainerParts parts;
  parts.stages = places_at(seat, shape);
  require(bodies.size() == parts.stages.size(), [&] {
    return fmt::format(
        "{} needs {} stage bodies, got {}", owner_of(seat), parts.stages.size(), bodies.size());
  });
  for (std::size_t i = 0; i < bodies.size(); ++i) parts.stages[i].body = bodies[i].get();
  const int replicas = seat.of_grid.grid().data();
  if (options.step.shard_optimizer && replicas > 1) share_out(parts.stages, replicas);
  parts.bodies = std::move(bodies);
  parts.group = seat.group;
  parts.seat = seat.of_grid;
  ProcessGroup alone;
  ProcessGroup& group = seat.group != nullptr ? *seat.group : alone;
  const Program program = with_recompute(
      with_ties(plan.program, parts.stages, options.step.tied, group), options.run.recompute);
  parts.executor = executor_at(seat, program, parts.stages, options.run);
  parts.evaluator = executor_at(seat, forward_program(shape), parts.stages, options.run);
  parts.options = options;
  return parts;
}

TrainerParts assemble(const ModelSpec& model,
                      const Plan& plan,
                      const TrainerOptions& options,
                      const Seat& seat) {
  const Shape& shape = plan.program.shape;
  check_passes(options.step, shape);
  const std::vector<int> boundaries = boundaries_of(model, plan);
  const Program program = with_edges(plan.program, model, boundaries);
  const std::vector<int> segments =
      recompute_segments(options.run.recompute,
                         model,
                         boundaries,
                         program,
                         micro_batch_of(model, shape, options, seat.of_grid.grid().data()));
  Bodies bodies;
  for (const HostedStage& place : places_at(seat, shape)) {
    auto module = build_stage(model, boundaries, place.stage.value, options.step.seed);
    module->recompute_in(segments_of_stage(segments, boundaries, place.stage.index()));
    bodies.push_back(std::move(module));
  }
  TrainerOptions rest = options;
  rest.run.recompute = {};
  rest.step.tied.insert(rest.step.tied.end(), model.tied.begin(), model.tied.end());
  TrainerParts parts =
      assemble({.program = insert_recompute(program, recomputed_stages(segments, boundaries))},
               std::move(bodies),
               rest,
               seat);
  parts.precision = model.precision;
  parts.model = model.text;
  parts.boundaries = plan.boundaries.empty() ? plan.boundaries : boundaries;
  parts.norm_values = norm_values(model, shape.slices);
  parts.options = options;
  return parts;
}

std::vector<ChannelDepth> channel_depths(const ModelSpec& model,
                                         const Plan& plan,
                                         const TrainerOptions& options,
                                         int replicas) {
  const std::vector<int> boundaries = boundaries_of(model, plan);
  const Program program = with_edges(plan.program, model, boundaries);
  if (!knows_positions(model)) return channel_depths(program);
  const UnitSize unit = micro_batch_of(model, program.shape, options, replicas);
  return detail::depths_with_tensors(program,
                                     detail::TensorSizes(model, boundaries, program.shape, unit),
                                     options.step.accumulate);
}

TrainerParts rank_parts(const Plan& plan,
                        Bodies bodies,
                        const TrainerOptions& options,
                        const GridPosition& position,
                        ProcessGroup& group) {
  return assemble(plan, std::move(bodies), options, {position, &group});
}

TrainerParts rank_parts(const ModelSpec& model,
                        const Plan& plan,
                        const TrainerOptions& options,
                        const GridPosition& position,
                        ProcessGroup& group) {
  return assemble(model, plan, options, {position, &group});
}

}  // namespace millrace
