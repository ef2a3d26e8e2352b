// What a layer keeps between its passes: for one unit, and where the units are slices of one
// micro-batch, for the slices after it.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/stages/precision.hpp"
#include "millrace/stages/stage.hpp"

namespace millrace {

/// The memory of one layer for one unit. It counts its bytes in the context's meter.
///
/// Tensors are *kept* for the unit's own passes, those of f32 in the stash's precision (`hold_in`):
/// rounded once, when they are kept. What other slices of the micro-batch read (a
/// causal layer's carry, an attention's keys and values) is *shared*: it stays where the unit is to
/// be recomputed and in evaluation, and `of_slice` finds it. Forwards of the slices run in
/// ascending order, backwards in descending order, so slice s may read what is shared by the slices
/// before it, and in its backward may put something in the place of what they share.
/// Thread-safety: externally synchronised; the slices of a micro-batch together.
class Stash {
 public:
  /// f32, or f16 or bf16: what tensors of f32 are kept in. For an empty stash.
  void hold_in(DType precision) { precision_ = precision; }

  void keep(const PassContext& context, Tensor tensor) {
    if (is_narrow(precision_) && tensor && tensor.dtype() == DType::F32)
      tensor = narrowed(context, tensor, precision_);
    count(context, tensor.bytes());
    kept_.push_back(std::move(tensor));
  }

  /// Tensor i to read, as it was given but for the rounding; no longer than it is kept.
  [[nodiscard]] Tensor read(const PassContext& context, std::size_t i) {
    return opened(context, kept_[i]);
  }

  [[nodiscard]] std::size_t size() const { return kept_.size(); }

  /// Takes tensor i out, in f32 again; its place stays, empty.
  Tensor take(const PassContext& context, std::size_t i) {
    discount(context, kept_[i].bytes());
    Tensor kept = std::move(kept_[i]);
    return is_narrow(kept.dtype()) ? widened(context, kept) : std::move(kept);
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
  /// To add to, by slices that run backward.
  [[nodiscard]] Tensor& shared(std::size_t i) { return shared_[i]; }
  /// Shared tensor i to read, in f32 where it was narrowed; no longer than it is there.
  [[nodiscard]] Tensor read_shared(const PassContext& context, std::size_t i) {
    return opened(context, shared_[i]);
  }
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
  [[nodiscard]] static Tensor opened(const PassContext& context, Tensor& tensor) {
    if (is_narrow(tensor.dtype())) return widened(context, tensor);
    return {tensor.dtype(), tensor.dims(), tensor.data(), nullptr, nullptr, tensor.margins()};
  }

  static void count(const PassContext& context, std::size_t bytes) {
    if (context.meter != nullptr) context.meter->add(bytes);
  }
  static void discount(const PassContext& context, std::size_t bytes) {
    if (context.meter != nullptr) context.meter->remove(bytes);
  }

  DType precision_ = DType::F32;
  TensorList kept_;
  TensorList shared_;
  std::span<Stash> slices_;
};

}  // namespace millrace
