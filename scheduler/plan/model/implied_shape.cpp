// The shape that lists of actions imply; see program.hpp. First the counts, which the number of
// actions bounds, then tables of their size.
#include <algorithm>
#include <string>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/program.hpp"
#include "plan/model/validate.hpp"

namespace millrace {

namespace {

using Lists = std::vector<std::vector<Action>>;

constexpr std::int32_t kNobody = -1;

/// One above the largest numbers of the actions.
struct Counts {
  std::int64_t actions = 0, replicas = 1, stages = 1, micro_batches = 1, slices = 1;
  bool backward = false;

  void note(const Action& action) {
    require(action.stage.value >= 0 && action.micro_batch.value >= 0 && action.slice.value >= 0 &&
                static_cast<int>(action.op) < kOps,
            "an action has a negative number or an unknown op; its numbers count from 0");
    const auto raise = [](std::int64_t& count, std::int32_t number) {
      count = std::max(count, std::int64_t{number} + 1);
    };
    ++actions;
    raise(replicas, action.replica_number);
    raise(stages, action.stage.value);
    raise(micro_batches, action.micro_batch.value);
    raise(slices, action.slice.value);
    backward = backward || (is_compute(action.op) && action.op != Op::Forward);
  }

  /// A real program has a forward per stage and unit; the slack leaves room for faulty ones.
  void require_bounded() const {
    const std::int64_t most = 8 * actions + 8;
    const std::int64_t units = micro_batches > most ? most + 1 : micro_batches * slices;
    require(stages <= most && units <= most && units * stages <= most, [&] {
      return std::to_string(stages) + " stages, " + std::to_string(micro_batches) +
             " micro-batches and " + std::to_string(slices) + " slices cannot be: there are only " +
             std::to_string(actions) + " actions";
    });
  }
};

Placement placement_of(const Lists& lists, const Counts& counts) {
  const auto stages = static_cast<std::size_t>(counts.stages);
  std::vector<std::vector<Rank>> ranks(static_cast<std::size_t>(counts.replicas),
                                       std::vector<Rank>(stages, Rank{kNobody}));
  for (std::int32_t rank = 0; rank < static_cast<std::int32_t>(lists.size()); ++rank)
    for (const Action& action : lists[static_cast<std::size_t>(rank)]) {
      Rank& there = ranks[action.replica().index()][action.stage.index()];
      require(there.value == kNobody || there.value == rank, [&] {
        return "stage " + std::to_string(action.stage.value) + " is on rank " +
               std::to_string(there.value) + " and, with " + to_string(action) + ", on rank " +
               std::to_string(rank) + "; a stage is on one rank";
      });
      there = Rank{rank};
    }
  for (const auto& replica : ranks) {
    const auto missing = std::find(replica.begin(), replica.end(), Rank{kNobody});
    require(missing == replica.end(), [&] {
      return "stage " + std::to_string(missing - replica.begin()) + " does not occur, but of its " +
             "model there are " + std::to_string(stages) + " stages";
    });
  }
  return Placement(std::move(ranks));
}

std::vector<Replica> replicas_of(const Lists& lists, const Counts& counts) {
  if (counts.replicas == 1) return {};
  std::vector<Replica> replicas(static_cast<std::size_t>(counts.micro_batches), Replica{kNobody});
  for (const auto& list : lists)
    for (const Action& action : list) {
      if (!has_unit(action.op)) continue;
      Replica& there = replicas[action.micro_batch.index()];
      require(there.value == kNobody || there == action.replica(), [&] {
        return "micro-batch " + std::to_string(action.micro_batch.value) +
               " is of several replicas; it is of one";
      });
      there = action.replica();
    }
  for (Replica& replica : replicas) replica.value = std::max(replica.value, 0);
  return replicas;
}

}  // namespace

Shape implied_shape(const Lists& ranks) {
  Counts counts;
  for (const auto& list : ranks)
    for (const Action& action : list) counts.note(action);
  require(counts.actions > 0, "there is no action; a program has a list of actions per rank");
  counts.require_bounded();
  Shape shape;
  shape.ranks = static_cast<int>(ranks.size());
  shape.micro_batches = static_cast<int>(counts.micro_batches);
  shape.slices = static_cast<int>(counts.slices);
  shape.placement = placement_of(ranks, counts);
  shape.replica_of = replicas_of(ranks, counts);
  shape.forward_only = !counts.backward;
  return shape;
}

void require_inside_shape(const Program& program) {
  plan::validate(program);
}

}  // namespace millrace
