// What goes along several links at once: a stage's inputs are gathered from those that enter it,
// its outputs are dealt to those that leave it, and the gradients of an output that several stages
// use are added. In a chain nothing of this is needed: a list goes through as it is.
#pragma once

#include <cstdint>
#include <vector>

#include "millrace/core/tensor_list.hpp"
#include "millrace/core/tensor_pool.hpp"
#include "run/slot_map.hpp"
#include "run/value_slots.hpp"

namespace millrace::run {

/// Thread-safety: immutable; the slots as ValueSlots.
class Wiring {
 public:
  /// `graph` and `map` must outlive this.
  Wiring(const StageGraph& graph, const SlotMap& map);

  /// The inputs of a stage, by index.
  [[nodiscard]] TensorList inputs(ValueSlots& slots, Stage stage, std::uint32_t unit) const;

  /// Deals the outputs of a stage; the last user of each gets the tensor itself, the others copies.
  /// Throws InvalidArgument when there are more or fewer outputs than the links use.
  void give_outputs(ValueSlots& slots,
                    Stage stage,
                    std::uint32_t unit,
                    TensorList outputs,
                    TensorPool& pool) const;

  /// A gradient for each output: the sum over its users, ((g1 + g2) + g3)... in ascending order of
  /// their stages; absent where nobody uses it
  /// or all of its users' are absent. Throws Mismatch when they differ in dtype or shape.
  [[nodiscard]] TensorList gradients(ValueSlots& slots, Stage stage, std::uint32_t unit) const;

  /// Deals the gradients of a stage's inputs to the stages that made them.
  void give_gradients(ValueSlots& slots,
                      Stage stage,
                      std::uint32_t unit,
                      TensorList gradients) const;

 private:
  [[nodiscard]] std::vector<int> uses(Stage stage) const;

  const StageGraph& graph_;
  const SlotMap& map_;
  std::vector<std::vector<int>> uses_;  // by stage and output: how many inputs it is
};

}  // namespace millrace::run
