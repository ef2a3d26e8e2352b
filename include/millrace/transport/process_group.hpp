// ProcessGroup: an ordered set of processes and what they agree on. Sums are taken in the order of
// the processes, ((x0 + x1) + x2)..., never in order of arrival, so bits do not depend on timing.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "millrace/core/ids.hpp"
#include "millrace/transport/endpoint.hpp"

namespace millrace {

/// What processes agree on by a collective; reports name it.
enum class Label : std::uint8_t {
  Values,  ///< values of a user's program
  Model,
  Data,
  Loss,
  TiedWeights,
  GradientNorm,
  WeightsHash,
  Measurement,
  Settings,
  Checkpoint,
  OptimizerShards
};

/// How all_reduce joins the values of the processes.
enum class ReduceOp : std::uint8_t { Sum, Max };

/// Processes that work together, and operations that every one of them calls in the same order,
/// each with a label that reports name.
///
/// Every call throws TransportError when a process is lost or the group's timeout passes,
/// Cancelled after a cancel, and Mismatch when the processes disagree about sizes or types. With n
/// processes and a value of N bytes, all_reduce and broadcast move at most 2 N bytes through each
/// endpoint when N is large (every process owns a block, which travels in pieces: one is added
/// while the next is on its way), and 2 (n - 1) messages through the first process's when it is
/// small. A group of one moves nothing. Thread-safety: thread-affine, as the endpoint.
class ProcessGroup {
 public:
  /// This process alone, without an endpoint.
  ProcessGroup() = default;

  /// All processes of the endpoint, which must outlive this. No call waits longer than `timeout`.
  explicit ProcessGroup(Endpoint& endpoint,
                        std::chrono::milliseconds timeout = std::chrono::minutes(10));

  /// Some processes (ascending, with the endpoint's own). `number` distinguishes groups that share
  /// two processes; all of them give the same. Throws InvalidArgument otherwise.
  ProcessGroup(Endpoint& endpoint,
               std::span<const Rank> processes,
               int number,
               std::chrono::milliseconds timeout = std::chrono::minutes(10));

  [[nodiscard]] int size() const { return static_cast<int>(processes_.size()); }
  /// This process's place in the group, from 0.
  [[nodiscard]] int rank() const { return rank_; }
  /// The endpoint's numbers of the processes, in order.
  [[nodiscard]] std::span<const Rank> processes() const { return processes_; }

  /// Names the step (evaluations: 2^63 and up) of the calls that follow; steps ascend.
  void begin_step(std::uint64_t step);

  /// values[i] becomes the sum or maximum over the processes, the same bits everywhere. What is not
  /// finite stays so; a NaN makes the maximum NaN.
  void all_reduce(std::span<double> values, ReduceOp op, Label label);

  /// As above for a tensor of f32 or f64; sums are taken in the tensor's own type. Throws
  /// InvalidArgument for another dtype.
  void all_reduce(Tensor& tensor, ReduceOp op, Label label);

  /// The first half of that: of n equal blocks of the tensor, block rank() becomes the sum or
  /// maximum over the processes, and the others stay as they were. Block i is the elements [i
  /// elements / n, (i + 1) elements / n). Throws as all_reduce.
  void reduce_scatter(Tensor& tensor, ReduceOp op, Label label);

  /// all_reduce with Sum. Who has nothing to say gives 0: x + 0 is x, so the result does not depend
  /// on who says what.
  void sum(std::span<double> values, Label label) { all_reduce(values, ReduceOp::Sum, label); }

  /// Every process gets the tensors of the process at place `root`; those of the others are
  /// replaced.
  void broadcast(int root, TensorList& tensors, Label label);

  /// Every process gets the tensors of all, in the group's order; each process sends its own n - 1
  /// times.
  [[nodiscard]] std::vector<TensorList> all_gather(TensorList mine, Label label);

  /// The process at place `root` gets the tensors of all in the group's order, the others an empty
  /// vector.
  [[nodiscard]] std::vector<TensorList> gather(int root, TensorList mine, Label label);

  /// Every process gets what each gave, in the group's order.
  [[nodiscard]] std::vector<std::string> gather(const std::string& mine, Label label);

  /// Returns after every process has called it.
  void barrier(Label label);

  /// Ends all waits of all processes, with Cancelled{reason}: after it no operation works. Alone,
  /// it does nothing.
  void cancel(const std::string& reason) noexcept {
    if (endpoint_ != nullptr) endpoint_->cancel(reason);
  }

 private:
  [[nodiscard]] MessageTag next_tag(Label label);
  [[nodiscard]] Deadline deadline() const;
  template <class T>
  class Blocks;
  template <class T>
  void reduce_at_first(std::span<T> values, ReduceOp op, Label label);
  template <class T>
  void reduce_by_blocks(std::span<T> values, ReduceOp op, Label label);
  template <class T>
  void reduce(std::span<T> values, ReduceOp op, Label label);

  Endpoint* endpoint_ = nullptr;  // null: alone
  std::vector<Rank> processes_{Rank{0}};
  int rank_ = 0;
  int group_ = 0;
  std::chrono::milliseconds timeout_{0};
  std::uint64_t step_ = 0;
  std::int32_t number_ = 0;  // modulo 2^16
};

}  // namespace millrace
