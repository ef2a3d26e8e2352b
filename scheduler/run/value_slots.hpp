// Places for the tensors between actions: the inputs of a stage and the gradients of its outputs,
// one slot per unit, for the stages at whose borders this process works. Filled once and taken once
// per step; both are checked, because a slot misused means that a dependency was not kept.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "millrace/core/error.hpp"
#include "millrace/core/tensor.hpp"

namespace millrace::run {

/// Thread-safety: different slots from different threads; one slot externally synchronised.
class ValueSlots {
 public:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  void resize(std::size_t slots) {
    values_.resize(slots);
    full_.assign(slots, 0);
  }

  void put(std::uint32_t slot, TensorList&& value) {
    if (full_[slot] != 0) throw Error("the value it gives was given before and not taken yet");
    values_[slot] = std::move(value);
    full_[slot] = 1;
  }

  [[nodiscard]] TensorList take(std::uint32_t slot) {
    if (full_[slot] == 0) throw Error("the value it needs is not there");
    full_[slot] = 0;
    return std::move(values_[slot]);
  }

  /// First slot that is full, or the number of slots.
  [[nodiscard]] std::size_t first_full() const {
    std::size_t slot = 0;
    while (slot < full_.size() && full_[slot] == 0) ++slot;
    return slot;
  }

  [[nodiscard]] std::size_t size() const { return full_.size(); }

  void clear() noexcept {
    for (std::size_t slot = 0; slot < full_.size(); ++slot) {
      if (full_[slot] != 0) values_[slot].clear();
      full_[slot] = 0;
    }
  }

 private:
  std::vector<TensorList> values_;
  std::vector<std::uint8_t> full_;
};

}  // namespace millrace::run
