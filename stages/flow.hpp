// The tensors inside a stage while a pass runs: every value with its readers on the way forward,
// every use of a value with its gradient on the way back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "millrace/stages/module.hpp"
#include "stages/shared_tensor.hpp"

namespace millrace {

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
  std::vector<detail::SharedTensor> tensors_;  // by value
  std::vector<Tensor> gradients_;              // by use
};

}  // namespace millrace
