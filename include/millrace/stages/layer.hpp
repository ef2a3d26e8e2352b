// The layer contract: tensors to tensors in three passes, with everything they keep between them in
// a Stash that the stage owns, so that a layer itself has no per-unit state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/core/error.hpp"
#include "millrace/core/tensor.hpp"
#include "millrace/stages/stage.hpp"

namespace millrace {

/// Whether it is f16 or bf16: numbers that are stored and sent, and widened to f32 to compute.
[[nodiscard]] constexpr bool is_narrow(DType dtype) {
  return dtype == DType::F16 || dtype == DType::BF16;
}

/// Gives every number the value of the nearest one of `precision`, ties to the even one; what is
/// too large becomes infinite (f16: from 65,520 on), what is not a number stays none. Does nothing
/// for f32. The same bits on every processor. Cost: O(n). Thread-safety: re-entrant, as all here.
void round_to(DType precision, std::span<float> values);

/// The f32 tensor in numbers of `precision`, f16 or bf16, rounded as above.
[[nodiscard]] Tensor narrowed(const PassContext& context, const Tensor& wide, DType precision);

/// An f16 or bf16 tensor in f32, exactly.
[[nodiscard]] Tensor widened(const PassContext& context, const Tensor& narrow);

/// "f32", "bf16" or "f16". Throws InvalidArgument that names those three.
[[nodiscard]] DType precision_of(std::string_view name);

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
  /// the slice does not exist.
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

/// Where a layer stands in its model.
struct LayerPlace {
  std::uint32_t number = 0;  ///< global: names the parameters ("layers.N.weight"), keys their draws
  DType dtype = DType::F32;  ///< the model's: what the layer computes in
  DType precision = DType::F32;  ///< what it keeps and its parameters are rounded to
};

/// Bytes that a layer keeps for one unit.
struct LayerBytes {
  std::size_t after_forward = 0;  ///< after F, what is shared included
  std::size_t after_input = 0;    ///< between I and W
  std::size_t shared = 0;         ///< of after_forward, what other slices read
};

/// One layer of a built-in model: a list of tensors to a list of tensors, each with its own dtype
/// and shape, on 64-byte boundaries; some without gradient. In a model of f16 or bf16 it is given
/// f32 tensors of such numbers and its outputs are rounded after it, so that a layer need not
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
  explicit Layer(const LayerPlace& place = {}) : place_(place) {}
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;
  virtual ~Layer() = default;

  /// The types of its outputs, at least one, for inputs of these types. Throws InvalidArgument,
  /// saying what was given and what it takes, when it does not take them.
  [[nodiscard]] virtual std::vector<TensorType> infer(std::span<const TensorType> inputs) const = 0;

  virtual TensorList forward(const PassContext& context, TensorList inputs, Stash& stash) = 0;

  /// Gradients of the outputs to gradients of the inputs. An output without a requested gradient
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
  [[nodiscard]] DType precision() const { return place_.precision; }
  void hold_in(DType precision) {
    place_.precision = precision;
    for (Parameter* parameter : parameters())
      if (parameter->role == ParameterRole::Trained) parameter->precision = precision;
  }

  /// What it computes in, and its global number.
  [[nodiscard]] DType dtype() const { return place_.dtype; }
  [[nodiscard]] std::uint32_t number() const { return place_.number; }

  /// Slices of a micro-batch, which what it keeps may depend on. Said by `cut_into` before a step.
  [[nodiscard]] int slices() const { return slices_; }
  void cut_into(int slices) { slices_ = slices; }

 protected:
  /// What a number of its dtype is in the stash, for `bytes`.
  [[nodiscard]] DType kept_dtype() const { return dtype() == DType::F32 ? precision() : dtype(); }
  /// Bytes of so many such numbers.
  [[nodiscard]] std::size_t kept_bytes(std::int64_t numbers) const {
    return size_of(kept_dtype()) * static_cast<std::size_t>(numbers);
  }

 private:
  LayerPlace place_;
  int slices_ = 1;
};

/// An image [height, width, channels], row-major. Thread-safety: a value.
struct ImageShape {
  std::int64_t height = 1;
  std::int64_t width = 1;
  std::int64_t channels = 1;

  [[nodiscard]] std::int64_t pixels() const { return height * width; }
  [[nodiscard]] std::int64_t elements() const { return pixels() * channels; }
  [[nodiscard]] Dims dims() const { return {height, width, channels}; }

  friend bool operator==(const ImageShape&, const ImageShape&) = default;
};

/// Windows of kernel_height x kernel_width pixels, `stride` pixels apart in both directions, over
/// an image with `padding` pixels around it: output pixel (i, j) sees the input pixels from
/// (i stride - padding, j stride - padding) on. Thread-safety: a value.
struct Window {
  std::int64_t kernel_height = 1;
  std::int64_t kernel_width = 1;
  std::int64_t stride = 1;
  std::int64_t padding = 0;

  [[nodiscard]] std::int64_t pixels() const { return kernel_height * kernel_width; }

  /// The output's height and width, floor((extent + 2 padding - kernel) / stride) + 1, with as many
  /// channels. Throws InvalidArgument, beginning with `who`, when an extent of the window or the
  /// stride is below 1, the padding is not from 0 to half the kernel, or the window is larger than
  /// the padded image.
  [[nodiscard]] ImageShape over(const ImageShape& image, const std::string& who) const;
};

/// A layer of one tensor [..., input extents] to one [..., output extents], both of one dtype (f32
/// or f64): extents before these (samples, or samples and positions) are its rows.
/// Its passes see [rows, columns]. The extents are the columns alone, except in layers whose rows
/// are images. Keeps to the contract of Layer.
/// Thread-safety: externally synchronised.
class RowLayer : public Layer {
 public:
  [[nodiscard]] std::vector<TensorType> infer(std::span<const TensorType> inputs) const final;
  TensorList forward(const PassContext& context, TensorList inputs, Stash& stash) final;
  TensorList backward_input(const PassContext& context,
                            TensorList output_gradients,
                            Stash& stash,
                            bool wanted) final;
  [[nodiscard]] LayerBytes bytes(std::span<const TensorType> inputs) const final;

  /// Input [rows, in] to output [rows, out].
  virtual Tensor forward_rows(const PassContext& context, Tensor input, Stash& stash) = 0;
  /// Gradient of the output [rows, out] to gradient of the input [rows, in]; an empty tensor when
  /// it is not wanted.
  virtual Tensor backward_rows(const PassContext& context,
                               Tensor output_gradient,
                               Stash& stash,
                               bool wanted) = 0;

  /// What a row is made of; their product is the number of columns.
  [[nodiscard]] const Dims& input_extents() const { return input_; }
  [[nodiscard]] const Dims& output_extents() const { return output_; }
  [[nodiscard]] std::int64_t input_columns() const { return input_.elements(); }
  [[nodiscard]] std::int64_t output_columns() const { return output_.elements(); }
  /// Bytes kept for `rows` rows after F, and between I and W.
  [[nodiscard]] virtual std::size_t bytes_after_forward(std::int64_t rows) const = 0;
  [[nodiscard]] virtual std::size_t bytes_after_input(std::int64_t rows) const {
    (void)rows;
    return 0;
  }

 protected:
  RowLayer(const LayerPlace& place, const Dims& input, const Dims& output)
      : Layer(place), input_(input), output_(output) {}

 private:
  Dims input_;
  Dims output_;
};

}  // namespace millrace
