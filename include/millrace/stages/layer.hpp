// The layer contract: three passes with everything they keep between them in a Stash that the stage
// owns, so that a layer itself has no per-unit state.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "millrace/stages/stage.hpp"

namespace millrace {

/// What one layer keeps for one unit between its passes. Counts its bytes in the context's meter.
/// Thread-safety: externally synchronised.
class Stash {
 public:
  void keep(const PassContext& context, Tensor tensor) {
    if (context.meter != nullptr) context.meter->add(tensor.bytes());
    tensors_.push_back(std::move(tensor));
  }

  [[nodiscard]] const Tensor& operator[](std::size_t i) const { return tensors_[i]; }
  [[nodiscard]] std::size_t size() const { return tensors_.size(); }

  /// Takes tensor i out; its place stays, empty.
  Tensor take(const PassContext& context, std::size_t i) {
    if (context.meter != nullptr) context.meter->remove(tensors_[i].bytes());
    return std::move(tensors_[i]);
  }

  void clear(const PassContext& context) {
    if (context.meter != nullptr) context.meter->remove(tensors_.bytes());
    tensors_.clear();
  }

  /// Without counting: after a failed step.
  void drop() noexcept { tensors_ = TensorList(); }

 private:
  TensorList tensors_;
};

/// One layer of a built-in model: rows of `input_columns` numbers to rows of `output_columns`, all
/// of one dtype (f32 or f64), on 64-byte boundaries.
///
/// `forward` keeps in `stash` what the other passes need (nothing when `context.training` is
/// false); `backward_input` may drop what only it needed and keep the output gradient for
/// `backward_weight`, which ends with an empty stash. A layer without parameters clears the stash
/// in `backward_input`. Inside I a layer drops before it keeps, so that it never holds more than
/// the larger of the two amounts it declares. A forward must not write into its input (it may be
/// borrowed); a backward may write into the gradient it is given.
/// Thread-safety: externally synchronised.
class Layer {
 public:
  Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;
  virtual ~Layer() = default;

  /// Input [rows, in] to output [rows, out].
  virtual Tensor forward(const PassContext& context, Tensor input, Stash& stash) = 0;
  /// Gradient of the output [rows, out] to gradient of the input [rows, in]; an empty tensor when
  /// `needs_input_gradient` is false (the first layer of the model).
  virtual Tensor backward_input(const PassContext& context,
                                Tensor output_gradient,
                                Stash& stash,
                                bool needs_input_gradient) = 0;
  virtual void backward_weight(const PassContext& context, Stash& stash) {
    (void)context, (void)stash;
  }

  [[nodiscard]] virtual std::vector<Parameter*> parameters() { return {}; }
  /// Draws the parameters' first values: a pure function of the seed and the layer's global number.
  virtual void initialize(std::uint64_t seed) { (void)seed; }

  [[nodiscard]] virtual DType dtype() const = 0;
  [[nodiscard]] virtual std::int64_t input_columns() const = 0;
  [[nodiscard]] virtual std::int64_t output_columns() const = 0;
  /// Bytes kept for `rows` rows after F, and between I and W.
  [[nodiscard]] virtual std::size_t bytes_after_forward(std::int64_t rows) const = 0;
  [[nodiscard]] virtual std::size_t bytes_after_input(std::int64_t rows) const = 0;
  /// "layers.3: linear 64->96 with relu", for messages.
  [[nodiscard]] virtual std::string describe() const = 0;
};

}  // namespace millrace
