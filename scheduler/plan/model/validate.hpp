// Validate: what every function that takes a program asks of it before it uses the program's
// numbers as indices. Whether the schedule is right is verify's question.
#pragma once

#include <cstdint>

#include "millrace/scheduler/plan/program.hpp"

namespace millrace {
struct Timeline;
}

namespace millrace::plan {

/// Whether the shape owes at most this many forwards; no product overflows.
[[nodiscard]] bool owes_at_most(const Shape& shape, std::int64_t most);

/// Throws InvalidArgument when a count is below 1, the placement names a rank that does not exist
/// or `replica_of` does not fit. Cost: O(stages + micro-batches).
void validate(const Shape& shape);

/// The bounds of a shape's actions, copied: the test runs once per action.
class Bounds {
 public:
  explicit Bounds(const Shape& shape)
      : stages_(shape.stages()),
        replicas_(shape.replicas()),
        micro_batches_(shape.micro_batches),
        slices_(shape.slices) {}

  /// Throws InvalidArgument, naming the action, when it lies outside the shape.
  void require_inside(const Action& action) const {
    const bool stage = inside(action.stage.value, stages_) && action.replica_number < replicas_;
    // Of REDUCE_GRAD and STEP too, which have no unit: their numbers are 0.
    const bool unit =
        inside(action.micro_batch.value, micro_batches_) && inside(action.slice.value, slices_);
    if (!stage || !unit || static_cast<int>(action.op) >= kOps) refuse(action);
  }

 private:
  static bool inside(std::int32_t value, std::int32_t count) { return value >= 0 && value < count; }
  [[noreturn]] void refuse(const Action& action) const;

  std::int32_t stages_, replicas_, micro_batches_, slices_;
};

/// As for the shape; also when the lists are not one per rank. Cost: O(stages + micro-batches).
void validate_lists(const Program& program);

/// As above, and when an action lies outside the shape. Cost: O(actions).
void validate(const Program& program);

/// Throws InvalidArgument unless the timeline has an interval per action. Cost: O(ranks).
void require_aligned(const Program& program, const Timeline& timeline);

}  // namespace millrace::plan
