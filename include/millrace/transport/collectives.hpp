// Collectives over any endpoint, with bits that do not depend on timing: sums are taken in rank
// order, ((x0 + x1) + x2)..., never in order of arrival.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "millrace/transport/endpoint.hpp"

namespace millrace {

/// How all_reduce joins the values of the ranks.
enum class ReduceOp : std::uint8_t { Sum, Max };

/// Operations that every member of a group calls in the same order.
///
/// Every call throws TransportError at the deadline or when a peer is lost, Cancelled after a
/// cancel, and Mismatch when the members disagree about sizes or types. With n members and a value
/// of N bytes, all_reduce and broadcast move at most 2 N bytes through each rank's endpoint when N
/// is large (every member owns a block), and 2 (n - 1) messages through member 0's when it is
/// small. Thread-safety: thread-affine, as the endpoint.
class Collectives {
 public:
  /// Among all ranks. `endpoint` must outlive this.
  explicit Collectives(Endpoint& endpoint);

  /// Among `members` (ascending, with the endpoint's own rank). `group` tells groups apart that
  /// share two ranks; all members give the same. Throws InvalidArgument otherwise.
  Collectives(Endpoint& endpoint, std::span<const Rank> members, int group = 0);

  /// Names the step of the collectives that follow and counts them anew; steps ascend.
  void begin_step(std::uint64_t step);

  /// Names what the collectives that follow are for, in reports; the same on all members.
  void speak_of(Topic topic) { topic_ = topic; }

  /// values[i] becomes the sum or maximum over the members, the same bits everywhere. A NaN makes
  /// the maximum NaN.
  void all_reduce(std::span<double> values, ReduceOp op, Deadline deadline);

  /// As above for a tensor of f32 or f64; sums are taken in the tensor's own type. Throws
  /// InvalidArgument for another dtype.
  void all_reduce(Tensor& tensor, ReduceOp op, Deadline deadline);

  /// Everybody gets the root's tensors; `tensors` of the others is replaced.
  void broadcast(Rank root, TensorList& tensors, Deadline deadline);

  /// The root gets everybody's tensors in rank order, the others an empty vector.
  [[nodiscard]] std::vector<TensorList> gather(Rank root, TensorList mine, Deadline deadline);

  /// Returns after every member has called it.
  void barrier(Deadline deadline);

  [[nodiscard]] std::span<const Rank> members() const { return members_; }

 private:
  [[nodiscard]] MessageTag next_tag();
  template <class T>
  void reduce_at_root(std::span<T> values, ReduceOp op, Deadline deadline);
  template <class T>
  void reduce_by_blocks(std::span<T> values, ReduceOp op, Deadline deadline);
  template <class T>
  void reduce(std::span<T> values, ReduceOp op, Deadline deadline);

  Endpoint& endpoint_;
  std::vector<Rank> members_;
  int group_ = 0;
  std::uint64_t step_ = 0;
  std::int32_t number_ = 0;  // modulo 2^16
  Topic topic_ = Topic::Values;
};

}  // namespace millrace
