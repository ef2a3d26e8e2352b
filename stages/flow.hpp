// The tensors inside a stage while a pass runs: every value with its readers on the way forward,
// every use of a value with its gradient on the way back.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "millrace/stages/module.hpp"
#include "millrace/stages/stage.hpp"

namespace millrace {

/// Holds one tensor until its readers have taken it. One reader takes the tensor itself; of several
/// none may write into it. The tensors that were taken may be dropped by any thread.
/// Thread-safety: externally synchronised.
class SharedTensor {
 public:
  SharedTensor() = default;
  SharedTensor(const SharedTensor&) = delete;
  SharedTensor& operator=(const SharedTensor&) = delete;
  SharedTensor(SharedTensor&& other) noexcept
      : tensor_(std::move(other.tensor_)),
        memory_(std::exchange(other.memory_, nullptr)),
        readers_(std::exchange(other.readers_, 0)) {}
  SharedTensor& operator=(SharedTensor&&) = delete;
  ~SharedTensor() { drop(); }

  /// For `readers` calls of `take`. Memory for the count comes from the context.
  void set(const PassContext& context, Tensor tensor, int readers) {
    drop();
    tensor_ = std::move(tensor);
    readers_ = readers;
    if (readers < 2 || !tensor_) return;
    Tensor block = context.make(DType::U8, {static_cast<std::int64_t>(sizeof(Memory))});
    void* at = block.data();
    memory_ = ::new (at) Memory{{}, std::move(tensor_), std::move(block)};
    memory_->users.store(1, std::memory_order_relaxed);
  }

  [[nodiscard]] Tensor take() {
    --readers_;
    if (memory_ == nullptr) return std::move(tensor_);
    Memory* memory = memory_;
    if (readers_ > 0)
      memory->users.fetch_add(1, std::memory_order_relaxed);
    else
      memory_ = nullptr;  // the last reader takes over what was held here
    Tensor& whole = memory->whole;
    return {whole.dtype(), whole.dims(), whole.data(), &release, memory, whole.margins()};
  }

  /// Not taken; empty when nothing is held.
  [[nodiscard]] const Tensor& look() const { return memory_ != nullptr ? memory_->whole : tensor_; }

  void drop() noexcept {
    if (memory_ != nullptr) release(nullptr, 0, std::exchange(memory_, nullptr));
    tensor_ = Tensor();
    readers_ = 0;
  }

 private:
  struct Memory {
    std::atomic<int> users;
    Tensor whole;
    Tensor block;  // where this lies
  };

  static void release(void*, std::size_t, void* owner) noexcept {
    auto* memory = static_cast<Memory*>(owner);
    if (memory->users.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    const Tensor block = std::move(memory->block);  // outlives the object that lies in it
    memory->~Memory();
  }

  Tensor tensor_;
  Memory* memory_ = nullptr;
  int readers_ = 0;
};

/// Inside a stage all are of the dtype that layers compute in; with a precision of f16 or bf16
/// their numbers are rounded to such as soon as they come in or a layer has given them.
///
/// Values are numbered: the stage's inputs first, then the outputs of its layers in order. A
/// value's uses are numbered in the order in which their gradients are added: layers of this stage,
/// then later stages. Thread-safety: externally synchronised.
class StageModule::Flow {
 public:
  /// Throws InvalidArgument where types do not fit or an output has no use.
  Flow(const std::vector<std::unique_ptr<Layer>>& layers, StageWiring wiring, DType precision);

  // Forward.
  /// The values of the stage's inputs.
  void begin(const PassContext& context, TensorList inputs);
  TensorList inputs_of(std::size_t layer);
  void give(const PassContext& context, std::size_t layer, TensorList outputs);
  TensorList outputs();

  // Again, for some layers: the values that they take from others.
  /// Those that the layers [first, last) take and do not give, ascending.
  [[nodiscard]] std::vector<std::size_t> values_into(std::size_t first, std::size_t last) const;
  /// A value that has come to be and has not been taken by all its users.
  [[nodiscard]] const Tensor& look(std::size_t value) const { return tensors_[value].look(); }
  void put(const PassContext& context, std::size_t value, Tensor tensor);
  void drop_values() noexcept;

  // Backward.
  /// Gradients of the uses by later stages, output after output.
  void begin_backward(const PassContext& context, TensorList gradients);
  TensorList output_gradients(const PassContext& context, std::size_t layer);
  void give_gradients(const PassContext& context, std::size_t layer, TensorList gradients);
  /// One for each input of the stage, empty where it has none.
  TensorList input_gradients(const PassContext& context);

  /// Forgets what was not taken.
  void drop() noexcept;

  /// Whether a layer has an input that has a gradient.
  [[nodiscard]] bool wants_gradient(std::size_t layer) const { return wanted_[layer]; }
  [[nodiscard]] std::size_t later_uses() const { return later_uses_.size(); }
  /// The values that a layer gives: [first_value(layer), first_value(layer + 1)).
  [[nodiscard]] std::size_t first_value(std::size_t layer) const { return first_value_[layer]; }
  [[nodiscard]] const TensorType& type_of(std::size_t value) const { return values_[value].type; }
  /// The types of a layer's inputs in a unit of that size.
  [[nodiscard]] std::vector<TensorType> types_for(std::size_t layer, const UnitSize& size) const;
  [[nodiscard]] const TensorType& output_type(std::size_t output) const {
    return values_[value_of(wiring_.outputs[output])].type;
  }

 private:
  struct Value {
    TensorType type;
    int readers = 0;            // on the way forward: layers of the stage, and the stage's outputs
    std::size_t first_use = 0;  // in gradients_
    std::size_t uses = 0;
  };

  [[nodiscard]] std::size_t value_of(const StageWiring::Source& source) const;
  [[nodiscard]] bool exists(const StageWiring::Source& source) const;
  void infer(const std::vector<std::unique_ptr<Layer>>& layers);
  void number_uses();
  [[nodiscard]] Tensor gradient_of(const PassContext& context, std::size_t value);
  [[nodiscard]] Tensor entering(const PassContext& context, Tensor tensor) const;
  void round(const PassContext& context, Tensor& tensor) const;

  StageWiring wiring_;
  DType precision_;
  std::vector<std::size_t> first_value_;  // by layer; one more at the end
  std::vector<Value> values_;
  std::vector<std::vector<std::size_t>> layer_uses_;  // by layer and input: its place in gradients_
  std::vector<std::size_t> later_uses_;               // places in gradients_
  std::vector<bool> wanted_;
  std::vector<SharedTensor> tensors_;  // by value
  std::vector<Tensor> gradients_;      // by use
};

}  // namespace millrace
