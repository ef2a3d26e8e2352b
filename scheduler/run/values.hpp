// Places for the tensors between actions: the inputs of a stage and the gradients of its outputs,
// one slot per unit, for the stages at whose borders this process works. Filled once and taken once
// per step; both are checked, because a slot misused means that a dependency was not kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "millrace/core/error.hpp"
#include "millrace/core/tensor_list.hpp"
#include "millrace/core/tensor_pool.hpp"
#include "millrace/scheduler/plan/stage_graph.hpp"

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

/// The value slots in order: [link][unit], activations first, then gradients.
/// Thread-safety: immutable, share freely.
class SlotMap {
 public:
  /// `touched[link]`: whether one of its stages works in this process.
  SlotMap(const StageGraph& graph, const std::vector<bool>& touched, std::uint32_t units);

  [[nodiscard]] std::uint32_t activation(const StageLink& link, std::uint32_t unit) const {
    return row_[link.index] * units_ + unit;
  }
  [[nodiscard]] std::uint32_t gradient(const StageLink& link, std::uint32_t unit) const {
    return (static_cast<std::uint32_t>(links_.size()) + row_[link.index]) * units_ + unit;
  }
  [[nodiscard]] std::size_t size() const { return 2 * links_.size() * units_; }

  /// "the activation for stage 2, micro-batch 5".
  [[nodiscard]] std::string name(std::size_t slot, int slices) const;

 private:
  std::vector<std::uint32_t> row_;  // by link; meant where touched
  std::vector<StageLink> links_;    // by row
  std::uint32_t units_ = 0;
};

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
  /// their stages; absent where no stage uses it or all of its users' are absent. Throws Mismatch
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

/// What the first forward of a step took and gave binds its later passes: every unit has as many
/// inputs and outputs, and every one of them a gradient.
///
/// All throw InvalidArgument with a message that states what was given and what is wanted.
/// Thread-safety: externally synchronised; a line of its own, because stages run at the same time.
class alignas(64) TensorCounts {
 public:
  void begin_step() { inputs_ = outputs_ = kUnknown; }

  void forward_takes(const TensorList& inputs);
  void forward_gives(const TensorList& outputs);
  /// The last stage of a training step has a loss and no outputs.
  static void last_forward_gives(const TensorList& outputs);

  /// The last stage was not given any: its loss is where gradients begin.
  void backward_takes(const TensorList& output_gradients) const;
  void backward_gives(const TensorList& input_gradients) const;
  /// The gradients of the first stage's inputs are not used: all of them or none.
  void first_backward_gives(const TensorList& input_gradients) const;

 private:
  static constexpr std::size_t kUnknown = ~std::size_t{0};

  std::size_t inputs_ = kUnknown;
  std::size_t outputs_ = kUnknown;
};

}  // namespace millrace::run
