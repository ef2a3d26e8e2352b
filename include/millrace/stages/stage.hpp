// The stage contract: what a pipeline needs of a piece of a model. Built-in models use StageModule
// (module.hpp); users write their own by deriving from StageBody, or make one of three functions
// (function_stage.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/core/ids.hpp"
#include "millrace/core/random.hpp"
#include "millrace/core/tensor.hpp"
#include "millrace/core/tensor_list.hpp"
#include "millrace/core/tensor_pool.hpp"

namespace millrace {

/// Extents that follow from the unit that a layer works on.
inline constexpr std::int64_t kSamples = -1;  ///< the first extent: samples of the micro-batch
inline constexpr std::int64_t kPositions =
    -2;  ///< the second, of sequences: positions of the slice

/// How much of the data a unit is.
struct UnitSize {
  std::int64_t samples = 0;
  std::int64_t positions = 1;

  friend bool operator==(const UnitSize&, const UnitSize&) = default;
};

/// "f32 [samples, positions, 64]". Thread-safety: a value.
struct TensorType {
  DType dtype = DType::F32;
  Dims dims;
  /// False: it needs no gradient, as token ids and data.
  bool has_gradient = true;

  /// Numbers in the last extent; 1 for a scalar.
  [[nodiscard]] std::int64_t columns() const {
    return dims.size() == 0 ? 1 : dims[dims.size() - 1];
  }

  friend bool operator==(const TensorType&, const TensorType&) = default;
};

/// The type with the unit's extents put in.
[[nodiscard]] TensorType sized(TensorType type, const UnitSize& size);

/// Bytes of a tensor of this type in a unit of that size.
[[nodiscard]] std::size_t bytes_of(const TensorType& type, const UnitSize& size);

/// "f32 [samples, positions, 64]".
[[nodiscard]] std::string to_string(const TensorType& type);

/// Threads among which a pass divides blocks of its work. How the work is cut into blocks decides
/// bits, so a kernel cuts it by its shape alone; who does which block decides nothing.
/// Thread-safety: `run` is called by one thread at a time.
class Workers {
 public:
  Workers() = default;
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;
  virtual ~Workers() = default;

  /// Calls body(0), ..., body(blocks - 1), each once, some of them at the same time, and returns
  /// after all of them. What one of them throws is thrown here; blocks that had not begun by then
  /// may be left out.
  virtual void run(std::int64_t blocks, const std::function<void(std::int64_t)>& body) = 0;
};

class BlockedSignals;

/// Sum of a loss over samples and the weight (usually the number of samples) it was summed over.
struct LossSum {
  double sum = 0;
  double weight = 0;
  std::int64_t correct = 0;    ///< right predictions, of losses that classify
  std::int64_t evaluated = 0;  ///< predictions that may be right or wrong: samples, tokens, ...

  [[nodiscard]] double mean() const { return weight > 0 ? sum / weight : 0; }

  LossSum& operator+=(const LossSum& other) {
    sum += other.sum;
    weight += other.weight;
    correct += other.correct;
    evaluated += other.evaluated;
    return *this;
  }
};

/// What the end of a step does with a parameter.
enum class ParameterRole : std::uint8_t {
  Trained,  ///< the optimizer moves it along its gradient
  /// A running statistic: passes add to its gradient what they saw, and its stage makes a new value
  /// of the sums (StageBody::update_statistics). No optimizer and no norm knows of it.
  Statistic,
  /// A statistic that takes micro-batch after micro-batch, so that its stage can have no copies.
  StatisticInOrder
};

/// One trainable tensor, or running statistic, and its gradient (same dtype and shape, zeroed once
/// per step by the trainer).
struct Parameter {
  std::string name;  ///< global: "layers.3.weight", never stage-local
  Tensor value;
  Tensor gradient;
  bool decays = true;  ///< weight decay applies (not to biases and norms)
  ParameterRole role = ParameterRole::Trained;
  /// Stays as it is: neither in the norm nor updated. Trainer::freeze sets it for every copy.
  bool frozen = false;
  /// f16 or bf16: the value is rounded to such numbers, although it is held in f32, and training
  /// moves an f32 master value next to it (TrainingState), of which this one is made.
  DType precision = DType::F32;
};

/// Counts the bytes a rank's stages hold for the backward pass, with their peak.
/// Thread-safety: externally synchronised (one per rank; a rank runs one action at a time).
struct StashMeter {
  std::size_t bytes = 0;
  std::size_t peak = 0;

  void add(std::size_t amount) {
    bytes += amount;
    if (bytes > peak) peak = bytes;
  }

  void remove(std::size_t amount) { bytes -= amount; }
};

/// Everything a pass may know about the unit it works on.
/// Thread-safety: one context belongs to one running pass.
struct PassContext {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  MicroBatch micro_batch;
  Slice slice;
  int slices = 1;                   ///< of a micro-batch
  std::int64_t first_sample = 0;    ///< index of the unit's first row in the mini-batch
  std::int64_t first_position = 0;  ///< of the slice in its sequence
  bool training = true;             ///< false: evaluation; dropout is off and nothing is stashed
  bool recompute_later = false;     ///< F: a recompute pass will rebuild what is not kept
  bool recomputing = false;         ///< set by the stage for its own forwards inside a recompute
  /// Factor on the loss gradient: (loss scale) / (total weight of the step). The one place of
  /// scaling.
  double loss_scale = 1;
  /// Targets of this unit; set for the last stage only, when the step has any. Not owned.
  const TensorList* targets = nullptr;
  /// Where the last stage's forward writes its loss; set for the last stage in every pass, with or
  /// without targets. Not owned.
  LossSum* loss = nullptr;
  /// Memory for outputs. Not owned; outlives every tensor of the step.
  TensorPool* pool = nullptr;
  /// Where stashed bytes are counted; may be null. Not owned.
  StashMeter* meter = nullptr;
  /// Threads that share the pass; null: the calling one does it alone. Not owned.
  Workers* workers = nullptr;
  /// Set by StageModule: the calling thread's signals are blocked until the pass ends. Not owned.
  const BlockedSignals* blocked_signals = nullptr;

  /// What a stage keys its memory by: slices of one micro-batch are units of their own.
  [[nodiscard]] Unit unit() const { return {micro_batch, slice}; }

  [[nodiscard]] RandomKey key(Purpose purpose, std::uint32_t sample, std::uint32_t layer) const {
    return {seed, purpose, step, static_cast<std::uint32_t>(first_sample) + sample, layer};
  }

  /// Uninitialised tensor from the pool, or with memory of its own when there is no pool.
  [[nodiscard]] Tensor make(DType dtype, const Dims& dims) const {
    return pool != nullptr ? pool->make(dtype, dims) : Tensor::uninitialised(dtype, dims);
  }
};

/// Bytes one unit keeps in a stage; the memory model that a simulation uses.
struct StashBytes {
  std::size_t after_forward = 0;    ///< held from the end of F
  std::size_t after_recompute = 0;  ///< held from the end of the recompute, where there is one
  /// Largest amount held at any moment inside I (or B), the recompute just before it included.
  std::size_t input_peak = 0;
  std::size_t after_input = 0;  ///< held between I and W
};

/// Consecutive layers with three passes. One stage sees its units' passes one at a time, in the
/// order of its rank's program; different stages run at the same time.
///
/// - `forward` consumes its inputs and returns outputs for the next stage: at least one, and as
///   many for every unit. The **last** stage, in training, has the targets in the context, adds its
///   loss to `*context.loss` and returns nothing. In evaluation the last stage returns its
///   predictions (and adds the loss if targets are given).
/// - `backward_input` takes the gradients of the outputs, one for each (none for the last stage),
///   and returns one for each input, an empty Tensor for an input without gradient (the first
///   stage: or an empty list).
/// - `backward_weight` adds the unit's weight gradients to the parameters' `gradient`.
/// - `backward` is both; the default calls them in turn and gives the same bits.
/// - A stage that has only `backward`, or does all of it in `backward_input`, says so by
///   `splits_backward`.
///
/// What a stage keeps between the passes of a unit it keeps by `context.unit()`. Tensors are
/// counted at every pass; another number than declared here ends the step with an error. Exceptions
/// thrown by a pass end the step; `abandon_step` then drops everything that is stashed.
/// Thread-safety: externally synchronised.
class StageBody {
 public:
  StageBody() = default;
  StageBody(const StageBody&) = delete;
  StageBody& operator=(const StageBody&) = delete;
  virtual ~StageBody() = default;

  virtual TensorList forward(const PassContext& context, TensorList inputs) = 0;
  virtual TensorList backward_input(const PassContext& context, TensorList output_gradients) = 0;
  virtual void backward_weight(const PassContext& context) = 0;

  virtual TensorList backward(const PassContext& context, TensorList output_gradients) {
    TensorList input_gradients = backward_input(context, std::move(output_gradients));
    backward_weight(context);
    return input_gradients;
  }

  /// False: where the program has I and W, I runs `backward` and W nothing. Correct, and without
  /// what a split is good for (see plan_warnings).
  [[nodiscard]] virtual bool splits_backward() const { return true; }

  /// True: where an output is the input of several stages, `backward_input` takes the gradient of
  /// each use apart, output after output, in the order of the using stages and their inputs. False:
  /// it takes one gradient for each output, the sum over its uses in that order.
  [[nodiscard]] virtual bool takes_gradient_per_use() const { return false; }

  /// Rebuilds what a forward with `recompute_later` did not keep. Called before B or I of the unit.
  virtual void recompute(const PassContext& context) { (void)context; }

  /// Trainable tensors in global order; pointers stay valid for the stage's life.
  [[nodiscard]] virtual std::vector<Parameter*> parameters() { return {}; }

  /// What the loss of a unit with these targets will weigh (LossSum::weight), of a last stage that
  /// knows it before it runs; nothing: the number of its samples. The gradients of a step are
  /// divided by the sum over all units, so that another reported weight ends it with an error.
  [[nodiscard]] virtual std::optional<double> loss_weight(const TensorList& targets) const {
    (void)targets;
    return std::nullopt;
  }

  /// The end of a step that is not skipped: makes new values of running statistics of what passes
  /// have added to their gradients, over all micro-batches and copies. Frozen ones stay.
  virtual void update_statistics() {}

  /// Room for `units` units in flight (numbered micro_batch * slices + slice); called before the
  /// first step.
  virtual void reserve(int micro_batches, int slices) { (void)micro_batches, (void)slices; }

  /// What a unit of that size stashes; all zeros if the stage does not know.
  [[nodiscard]] virtual StashBytes stash_bytes(const UnitSize& size, bool recompute) const {
    (void)size, (void)recompute;
    return {};
  }

  /// Units still stashed; 0 after every finished step.
  [[nodiscard]] virtual std::size_t stashed_units() const { return 0; }

  /// Forgets all stashed units after a failed step.
  virtual void abandon_step() noexcept {}
};

/// The passes of a stage as functions, with the meaning that StageBody gives them. `kept` belongs
/// to the unit: what the forward puts there, the backward passes find (and may exchange); it is
/// counted as stash, and empty again after the unit's last pass. In evaluation it is thrown away.
struct StageFunctions {
  std::function<TensorList(const PassContext& context, TensorList inputs, TensorList& kept)>
      forward;
  std::function<TensorList(const PassContext& context, TensorList gradients, TensorList& kept)>
      backward_input;
  /// Absent: backward_input does all of it, and the stage does not split its backward.
  std::function<void(const PassContext& context, TensorList& kept)> backward_weight = {};
};

/// A stage of those functions with the given parameters, which must outlive it. With recompute it
/// keeps a copy of its inputs and calls `forward` a second time. Throws InvalidArgument when one of
/// the first two functions is absent.
///
///     Parameter w{.name = "w", .value = ..., .gradient = ...};
///     auto scale = make_stage(
///         {.forward = [&](const PassContext&, TensorList inputs, TensorList& kept) { ... },
///          .backward_input = [&](const PassContext&, TensorList gradients, TensorList& kept) { ...
///          }, .backward_weight = [&](const PassContext&, TensorList& kept) { ... }},
///         {&w});
[[nodiscard]] std::unique_ptr<StageBody> make_stage(StageFunctions functions,
                                                    std::vector<Parameter*> parameters = {});

}  // namespace millrace
