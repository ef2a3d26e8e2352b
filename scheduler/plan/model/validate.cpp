// The refusals of a shape or a program whose numbers do not fit each other.
#include "plan/model/validate.hpp"

#include <string>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/simulate.hpp"

namespace millrace::plan {

namespace {

void require_count(int count, const char* what) {
  require(count >= 1,
          "the shape has " + std::to_string(count) + " " + what + "; at least 1 is needed");
}

void require_replicas(const Shape& shape) {
  if (shape.replica_of.empty()) return;
  require(shape.replica_of.size() == static_cast<std::size_t>(shape.micro_batches),
          "replica_of names " + std::to_string(shape.replica_of.size()) +
              " micro-batches; the shape has " + std::to_string(shape.micro_batches));
  for (const Replica replica : shape.replica_of)
    require(replica.value >= 0 && replica.value < shape.replicas(),
            "replica_of names replica " + std::to_string(replica.value) + "; the shape has " +
                std::to_string(shape.replicas()) + " replicas");
}

}  // namespace

bool owes_at_most(const Shape& shape, std::int64_t most) {
  const std::int64_t units = std::int64_t{shape.micro_batches} * shape.slices;
  return units <= 0 || shape.stages() <= most / units;
}

void validate(const Shape& shape) {
  require_count(shape.ranks, "ranks");
  require_count(shape.micro_batches, "micro-batches");
  require_count(shape.slices, "slices");
  require_count(shape.replicas(), "replicas in its placement");
  require_count(shape.stages(), "stages in its placement");
  for (int replica = 0; replica < shape.replicas(); ++replica)
    for (int stage = 0; stage < shape.stages(); ++stage) {
      const int rank = shape.rank(Replica{replica}, Stage{stage}).value;
      require(rank < shape.ranks,
              "stage " + std::to_string(stage) + " is placed on rank " + std::to_string(rank) +
                  "; the shape has " + std::to_string(shape.ranks) + " ranks");
    }
  require_replicas(shape);
}

void Bounds::refuse(const Action& action) const {
  throw InvalidArgument(to_string(action) + " lies outside the shape, which has " +
                        std::to_string(stages_) + " stages, " + std::to_string(micro_batches_) +
                        " micro-batches, " + std::to_string(slices_) + " slices and " +
                        std::to_string(replicas_) + " replicas");
}

void validate_lists(const Program& program) {
  validate(program.shape);
  require(program.ranks.size() == static_cast<std::size_t>(program.shape.ranks),
          "the program has " + std::to_string(program.ranks.size()) + " lists; its shape has " +
              std::to_string(program.shape.ranks) + " ranks");
}

void validate(const Program& program) {
  validate_lists(program);
  const Bounds bounds(program.shape);
  for (const auto& list : program.ranks)
    for (const Action& action : list) bounds.require_inside(action);
}

void require_aligned(const Program& program, const Timeline& timeline) {
  require(timeline.ranks.size() == program.ranks.size(),
          "the timeline has " + std::to_string(timeline.ranks.size()) + " ranks, the program " +
              std::to_string(program.ranks.size()));
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank)
    require(timeline.ranks[rank].size() == program.ranks[rank].size(),
            "the timeline has " + std::to_string(timeline.ranks[rank].size()) +
                " actions on rank " + std::to_string(rank) + ", the program " +
                std::to_string(program.ranks[rank].size()));
}

}  // namespace millrace::plan
