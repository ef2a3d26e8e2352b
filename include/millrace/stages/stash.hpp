// What a layer keeps between its passes: for one unit, and where the units are slices of one
// micro-batch, for the slices after it.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/stages/stage.hpp"

namespace millrace {

/// The memory of one layer for one unit. It counts its bytes in the context's meter.
///
/// Tensors are *kept* for the unit's own passes. What other slices of the micro-batch read (a
/// causal layer's carry, an attention's keys and values) is *shared*: it stays where the unit is to
/// be recomputed and in evaluation, and `of_slice` finds it. Forwards of the slices run in
/// ascending order, backwards in descending order, so slice s may read what is shared by the slices
/// before it, and in its backward may put something in the place of what they share.
/// Thread-safety: externally synchronised; the slices of a micro-batch together.
class Stash {
 public:
  void keep(const PassContext& context, Tensor tensor) {
    count(context, tensor.bytes());
    kept_.push_back(std::move(tensor));
  }

  [[nodiscard]] const Tensor& operator[](std::size_t i) const { return kept_[i]; }
  [[nodiscard]] std::size_t size() const { return kept_.size(); }

  /// Takes tensor i out; its place stays, empty.
  Tensor take(const PassContext& context, std::size_t i) {
    discount(context, kept_[i].bytes());
    return std::move(kept_[i]);
  }

  /// Gives place i of what is shared this tensor, in the place of one that was there. Does nothing
  /// in a recompute: what the forward shared is still there, or has made room for something else.
  void share(const PassContext& context, std::size_t i, Tensor tensor) {
    if (context.recomputing) return;
    while (shared_.size() <= i) shared_.push_back({});
    discount(context, shared_[i].bytes());
    count(context, tensor.bytes());
    shared_[i] = std::move(tensor);
  }

  [[nodiscard]] const Tensor& shared(std::size_t i) const { return shared_[i]; }
  [[nodiscard]] std::size_t shared_size() const { return shared_.size(); }

  /// The stash of the same layer for another slice of the micro-batch. Throws InvalidArgument when
  /// there is no such slice.
  [[nodiscard]] Stash& of_slice(Slice slice) const {
    require(slice.value >= 0 && slice.index() < slices_.size(), [&] {
      return "slice " + std::to_string(slice.value) + " is none of the micro-batch's " +
             std::to_string(slices_.size());
    });
    return slices_[slice.index()];
  }

  /// Drops everything, shared or not.
  void clear(const PassContext& context) {
    discount(context, kept_.bytes() + shared_.bytes());
    drop();
  }

  // What the module does with whole stashes.

  /// Drops without counting: after a failed step.
  void drop() noexcept {
    kept_.clear();
    shared_.clear();
  }

  /// After a forward that was not counted and will be recomputed: only what is shared stays.
  void keep_shared_only(const PassContext& context) {
    kept_.clear();
    count(context, shared_.bytes());
  }

  /// Makes the stashes of a micro-batch's slices, in order, find each other.
  static void join(std::span<Stash> slices) {
    for (Stash& stash : slices) stash.slices_ = slices;
  }

 private:
  static void count(const PassContext& context, std::size_t bytes) {
    if (context.meter != nullptr) context.meter->add(bytes);
  }
  static void discount(const PassContext& context, std::size_t bytes) {
    if (context.meter != nullptr) context.meter->remove(bytes);
  }

  TensorList kept_;
  TensorList shared_;
  std::span<Stash> slices_;
};

}  // namespace millrace
