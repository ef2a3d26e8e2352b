// The layer contract: tensors to tensors in three passes, with everything they keep between them in
// a Stash that the stage owns, so that a layer itself has no per-unit state.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "millrace/stages/stage.hpp"
#include "millrace/stages/stash.hpp"
#include "millrace/stages/tensor_type.hpp"

namespace millrace {

/// Bytes that a layer keeps for one unit.
struct LayerBytes {
  std::size_t after_forward = 0;  ///< after F, what is shared included
  std::size_t after_input = 0;    ///< between I and W
  std::size_t shared = 0;         ///< of after_forward, what other slices read
};

/// One layer of a built-in model: a list of tensors to a list of tensors, each with its own dtype
/// and shape, on 64-byte boundaries; some without gradient. In a model of f16 or bf16 it is given
/// f32 tensors of such numbers and what it gives is rounded behind it, so that a layer need not
/// know.
///
/// `forward` keeps in `stash` what the other passes need (in evaluation nothing but what it shares
/// with later slices); `backward_input` may drop what only it needed and keep output gradients for
/// `backward_weight`, which ends with an empty stash. A layer without parameters clears the stash
/// in `backward_input`. Inside I a layer drops before it keeps, so that it never holds more than
/// the larger of the two amounts it declares. A forward must not write into its inputs (they may be
/// borrowed, or used by other layers too); a backward may write into the gradients it is given.
/// Thread-safety: externally synchronised.
class Layer {
 public:
  Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;
  virtual ~Layer() = default;

  /// The types of its outputs, at least one, for inputs of these types. Throws InvalidArgument,
  /// saying what was given and what it takes, when it does not take them.
  [[nodiscard]] virtual std::vector<TensorType> infer(std::span<const TensorType> inputs) const = 0;

  virtual TensorList forward(const PassContext& context, TensorList inputs, Stash& stash) = 0;

  /// Gradients of the outputs to gradients of the inputs. An output that nobody asks a gradient of
  /// has an empty tensor, never all of them; an input without gradient is given an empty one. With
  /// `wanted` false (no input wants one) the list is empty.
  virtual TensorList backward_input(const PassContext& context,
                                    TensorList output_gradients,
                                    Stash& stash,
                                    bool wanted) = 0;
  virtual void backward_weight(const PassContext& context, Stash& stash) {
    (void)context, (void)stash;
  }

  /// What training moves, and running statistics.
  [[nodiscard]] virtual std::vector<Parameter*> parameters() { return {}; }
  /// See StageBody.
  virtual void update_statistics() {}
  /// Draws the parameters' first values: a pure function of the seed and the layer's global number.
  virtual void initialize(std::uint64_t seed) { (void)seed; }

  /// What it keeps for inputs of these types, all extents known: numbers of f32 count as much as
  /// those of its precision (`kept_dtype`).
  [[nodiscard]] virtual LayerBytes bytes(std::span<const TensorType> inputs) const = 0;
  /// Operations of the matrix products of a forward over inputs of these types, all extents known;
  /// a backward needs twice as many.
  [[nodiscard]] virtual double operations(std::span<const TensorType> inputs) const {
    (void)inputs;
    return 0;
  }
  /// "layers.3: linear 64->96 with relu", for messages.
  [[nodiscard]] virtual std::string describe() const = 0;

  /// f32, unless what it keeps and its parameters' values are to be rounded to f16 or bf16; what it
  /// computes stays f32. Said by `hold_in` before `initialize`.
  [[nodiscard]] DType precision() const { return precision_; }
  void hold_in(DType precision) {
    precision_ = precision;
    for (Parameter* parameter : parameters())
      if (parameter->role == ParameterRole::Trained) parameter->precision = precision;
  }

  /// Slices of a micro-batch, which what it keeps may depend on. Said by `cut_into` before a step.
  [[nodiscard]] int slices() const { return slices_; }
  void cut_into(int slices) { slices_ = slices; }

 protected:
  /// What a tensor of this dtype is in the stash, for `bytes`.
  [[nodiscard]] DType kept_dtype(DType dtype) const {
    return dtype == DType::F32 ? precision_ : dtype;
  }

 private:
  DType precision_ = DType::F32;
  int slices_ = 1;
};

}  // namespace millrace
