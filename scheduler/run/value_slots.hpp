// Places for the tensors between actions: the inputs of a stage and the gradients of its outputs,
// one slot per unit, for the stages at whose borders this process works. Filled once and taken once
// per step; both are checked, because a slot misused means that a dependency was not kept.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "millrace/core/error.hpp"
#include "millrace/core/tensor_list.hpp"

namespace millrace::run {

/// Thread-safety: different slots from different threads; one slot externally synchronised.
class ValueSlots {
 public:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  void resize(std::size_t slots) { slots_ = std::vector<Slot>(slots); }

  void put(std::uint32_t slot, TensorList&& value) {
    Slot& place = slots_[slot];
    if (place.full) throw Error("the value it gives was given before and not taken yet");
    place.value = std::move(value);
    place.full = true;
  }

  [[nodiscard]] TensorList take(std::uint32_t slot) {
    Slot& place = slots_[slot];
    if (!place.full) throw Error("the value it needs is not there");
    place.full = false;
    return std::move(place.value);
  }

  /// First slot that is full, or the number of slots.
  [[nodiscard]] std::size_t first_full() const {
    std::size_t slot = 0;
    while (slot < slots_.size() && !slots_[slot].full) ++slot;
    return slot;
  }

  [[nodiscard]] std::size_t size() const { return slots_.size(); }

  void clear() noexcept {
    for (Slot& place : slots_) {
      place.value.clear();
      place.full = false;
    }
  }

 private:
  /// Lines of its own: neighbours are filled and taken by other threads at the same time.
  struct alignas(64) Slot {
    bool full = false;
    TensorList value;
  };

  std::vector<Slot> slots_;
};

}  // namespace millrace::run
