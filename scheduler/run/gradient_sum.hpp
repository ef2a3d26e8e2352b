// The gradients of a stage that lives in several copies: copying them out, and adding them in
// replica order so that every copy gets the same bits.
#pragma once

#include <atomic>
#include <vector>

#include "millrace/core/tensor_list.hpp"
#include "millrace/core/tensor_pool.hpp"
#include "millrace/scheduler/run/executor.hpp"

namespace millrace::run {

/// One stage with copies. `bodies[replica]` is null where the copy lives in another process.
struct Reduction {
  Stage stage;
  std::vector<StageBody*> bodies;
  std::vector<Rank> rank_of;  ///< by replica
  int local_copies = 0;
  /// Copies whose REDUCE_GRAD was executed in this step. The last one adds: its acquire reads what
  /// the others' releases published, the gradients.
  std::atomic<int> arrived = 0;
};

/// sum += term, element by element, in their own type. Throws Mismatch when they differ in dtype or
/// shape, InvalidArgument for a dtype other than f32 and f64.
void add_gradient(Tensor& sum, const Tensor& term, Stage stage);

[[nodiscard]] Tensor copy_into(TensorPool& pool, const Tensor& from);

/// Copies of a stage's gradients, in the order of its parameters.
[[nodiscard]] TensorList copy_gradients(StageBody& body, TensorPool& pool);

/// Adds the copies in replica order, ((g0 + g1) + g2)..., and writes the sum to every body.
/// `received[replica]` holds the gradients of the copies without a body. Throws Mismatch when the
/// copies differ in number, dtype or size of their gradients, InvalidArgument for a dtype other
/// than f32 and f64.
void add_in_replica_order(const Reduction& reduction,
                          std::vector<TensorList>& received,
                          TensorPool& pool);

}  // namespace millrace::run
