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

  /// The inputs of a stage, by index. A tensor that is several of them came once; all but the last
  /// are copies.
  [[nodiscard]] TensorList inputs(ValueSlots& slots,
                                  Stage stage,
                                  std::uint32_t unit,
                                  TensorPool& pool) const;

  /// Deals the outputs of a stage, each once to every stage that uses it; the last gets the tensor
  /// itself, the others copies.
  /// Throws InvalidArgument when there are more or fewer outputs than the links use.
  void give_outputs(ValueSlots& slots,
                    Stage stage,
                    std::uint32_t unit,
                    TensorList outputs,
                    TensorPool& pool) const;

  /// A gradient for each output: the sum over its users, ((g1 + g2) + g3)... in ascending order of
  /// their stages; absent where nobody uses it or all of its users' are absent. Throws Mismatch
  /// when they differ in dtype or shape.
  [[nodiscard]] TensorList gradients(ValueSlots& slots, Stage stage, std::uint32_t unit) const;

  /// A gradient for each use of an output, not added: output after output, in the order of the
  /// using stages and their inputs.
  [[nodiscard]] TensorList gradients_per_use(ValueSlots& slots,
                                             Stage stage,
                                             std::uint32_t unit) const;

  /// Deals the gradients of a stage's inputs to the stages that made them.
  void give_gradients(ValueSlots& slots,
                      Stage stage,
                      std::uint32_t unit,
                      TensorList gradients) const;

 private:
  /// What a link carries; its edges in their order.
  struct Cargo {
    std::vector<std::size_t> tensor;  // by edge: which of those that travel forward
    std::vector<int> outputs;         // by tensor that travels forward
    std::vector<std::size_t> use;     // by edge: its place among the uses of its stage's outputs
  };

  [[nodiscard]] Cargo cargo_of(const StageLink& link) const;
  void number_uses(Stage stage);

  const StageGraph& graph_;
  const SlotMap& map_;
  std::vector<Cargo> cargo_;              // by link
  std::vector<std::vector<int>> takers_;  // by stage and output: how many stages take it
};

}  // namespace millrace::run
