// From a model and options to the parts of a trainer: program, stages, executors.
#include "training/parts.hpp"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/stages/partition.hpp"
#include "millrace/training/rank_parts.hpp"
#include "millrace/training/recompute.hpp"
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
                                      const TrainerOptions& options) {
  if (seat.of_grid.endpoint() == nullptr)
    return make_executor(
        executor_kind(options.executor), program, stages, options.executor_options);
  return make_rank_executor(program, stages, seat.of_grid, options.executor_options);
}

std::vector<int> boundaries_of(const ModelSpec& model,
                               const Shape& shape,
                               const TrainerOptions& options) {
  const std::vector<int> boundaries =
      options.boundaries.empty() ? even_boundaries(model, shape.stages()) : options.boundaries;
  require(static_cast<int>(boundaries.size()) == shape.stages() + 1,
          "the schedule has " + std::to_string(shape.stages()) + " stages, so the cut needs " +
              std::to_string(shape.stages() + 1) + " boundaries, got " +
              std::to_string(boundaries.size()));
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
  const std::string own = recompute_text(recomputed_stages(program));
  require(own == "none", [&] {
    return "recompute '" + to_string(recompute) + "': the plan recomputes " + own +
           " by itself; leave it out";
  });
  return insert_recompute(program,
                          parse_recompute_stages(to_string(recompute), program.shape.stages()));
}

constexpr const char* kLeaveOut = "; leave it out, or generate the program with it";

void check_count(const char* option, const std::optional<int>& given, int has) {
  if (given && *given != has)
    throw InvalidParameter(named(option) + " " + std::to_string(*given) + ": the program has " +
                           std::to_string(has) + kLeaveOut);
}

/// No option may ask for another program. A generated one is called by its schedule and its counts:
/// "1f1b p=4 m=8".
void check_options(const TrainerOptions& options, const Program& program) {
  const Shape& shape = program.shape;
  const std::string schedule = options.schedule.value_or(program.name);
  if (program.name != schedule && !program.name.starts_with(schedule + " "))
    throw InvalidParameter(named("schedule") + " " + schedule + ": the program is '" +
                           program.name + "'" + kLeaveOut);
  check_count("ranks", options.ranks, shape.ranks);
  check_count("chunks", options.chunks, shape.chunks());
  check_count("micro_batches", options.micro_batches, shape.micro_batches);
  check_count("slices", options.slices, shape.slices);
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
  require(options.recompute.kind != RecomputeKind::Auto || knows_positions(model),
          "recompute auto cannot know the length of the sequences that the model takes; choose "
          "all, every-K or selective:LAYERS");
  const std::int64_t count = std::int64_t{copies} * options.accumulate * shape.micro_batches;
  return {
      .samples = (options.batch_size + count - 1) / count,
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

Program training_program(const TrainerOptions& options) {
  ScheduleOptions wanted;
  wanted.ranks = options.ranks.value_or(4);
  wanted.micro_batches = options.micro_batches.value_or(8);
  wanted.chunks = options.chunks;
  wanted.slices = options.slices;
  return generate(options.schedule.value_or("1f1b"), wanted);
}

void check_passes(const TrainerOptions& options, const Shape& shape) {
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

void check_copies(const TrainerOptions& options, const Grid& grid) {
  const auto copies = static_cast<unsigned>(grid.data());
  require(options.accumulate_order == AccumulateOrder::Ascending || std::has_single_bit(copies),
          named("accumulate_order") + " tree: " + std::to_string(copies) +
              " copies of the pipeline are no node of the tree each; " +
              std::to_string(std::bit_floor(copies)) + " and " +
              std::to_string(std::bit_ceil(copies)) + " would be; or take ascending");
}

TrainerParts assemble(const Program& compute,
                      std::vector<std::unique_ptr<StageBody>> bodies,
                      const TrainerOptions& options,
                      const Seat& seat) {
  const Shape& shape = compute.shape;
  require(!shape.forward_only, "a forward-only program cannot train");
  check_options(options, compute);
  require(options.boundaries.empty(),
          "boundaries cut the layers of a model; a trainer of stages has its cut by them");
  require(seat.of_grid.endpoint() == nullptr || shape.ranks == seat.of_grid.grid().pipeline(), [&] {
    return "the program has " + std::to_string(shape.ranks) + " ranks, but there are " +
           std::to_string(seat.of_grid.grid().pipeline()) + " processes";
  });
  TrainerParts parts;
  parts.stages = places_at(seat, shape);
  require(bodies.size() == parts.stages.size(),
          owner_of(seat) + " needs " + std::to_string(parts.stages.size()) + " stage bodies, got " +
              std::to_string(bodies.size()));
  for (std::size_t i = 0; i < bodies.size(); ++i) parts.stages[i].body = bodies[i].get();
  const int copies = seat.of_grid.grid().data();
  if (options.shard_optimizer && copies > 1) share_out(parts.stages, copies);
  parts.bodies = std::move(bodies);
  parts.group = seat.group;
  parts.seat = seat.of_grid;
  ProcessGroup alone;
  ProcessGroup& group = seat.group != nullptr ? *seat.group : alone;
  const Program program =
      with_recompute(with_ties(compute, parts.stages, options, group), options.recompute);
  parts.executor = executor_at(seat, program, parts.stages, options);
  parts.evaluator = executor_at(seat, forward_program(shape), parts.stages, options);
  return parts;
}

TrainerParts assemble(const ModelSpec& model,
                      const Program& compute,
                      const TrainerOptions& options,
                      const Seat& seat) {
  const Shape& shape = compute.shape;
  check_options(options, compute);
  check_passes(options, shape);
  const std::vector<int> boundaries = boundaries_of(model, shape, options);
  const Program program = with_edges(compute, model, boundaries);
  const std::vector<int> segments =
      recompute_segments(options.recompute,
                         model,
                         boundaries,
                         program,
                         micro_batch_of(model, shape, options, seat.of_grid.grid().data()));
  std::vector<std::unique_ptr<StageBody>> bodies;
  for (const HostedStage& place : places_at(seat, shape)) {
    auto module = build_stage(model, boundaries, place.stage.value, options.seed);
    module->recompute_in(segments_of_stage(segments, boundaries, place.stage.index()));
    bodies.push_back(std::move(module));
  }
  TrainerOptions rest = options;
  rest.recompute = {};
  rest.boundaries = {};
  rest.tied.insert(rest.tied.end(), model.tied.begin(), model.tied.end());
  TrainerParts parts = assemble(insert_recompute(program, recomputed_stages(segments, boundaries)),
                                std::move(bodies),
                                rest,
                                seat);
  parts.precision = model.precision;
  parts.model = model.text;
  parts.norm_values = norm_values(model, shape.slices);
  return parts;
}

std::vector<ChannelDepth> channel_depths(const ModelSpec& model,
                                         const Program& program,
                                         const TrainerOptions& options,
                                         int copies) {
  const std::vector<int> boundaries = boundaries_of(model, program.shape, options);
  const Program cut = with_edges(program, model, boundaries);
  if (!knows_positions(model)) return channel_depths(cut);
  const UnitSize unit = micro_batch_of(model, cut.shape, options, copies);
  return detail::depths_with_tensors(
      cut, detail::TensorSizes(model, boundaries, cut.shape, unit), options.accumulate);
}

TrainerParts rank_parts(const Program& program,
                        std::vector<std::unique_ptr<StageBody>> bodies,
                        const TrainerOptions& options,
                        const GridPosition& seat,
                        ProcessGroup& group) {
  return assemble(program, std::move(bodies), options, {seat, &group});
}

TrainerParts rank_parts(const ModelSpec& model,
                        const Program& program,
                        const TrainerOptions& options,
                        const GridPosition& seat,
                        ProcessGroup& group) {
  return assemble(model, program, options, {seat, &group});
}

}  // namespace millrace
