// TorchStage: a module of PyTorch as a stage of a pipeline. Its backward pass is PyTorch's own
// autograd; what millrace adds is when it runs, and the order in which gradients are added up.
#pragma once

#include <ATen/core/Tensor.h>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/stages/stage.hpp"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace millrace {

/// What a stage computes: its outputs of its inputs. Runs under autograd in training, without in
/// evaluation; may branch and loop as it likes, as long as it gives as many outputs for every unit.
using TorchForward = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

/// What a loss says of one unit.
struct TorchLossSum {
  at::Tensor sum;            ///< a scalar with gradient: the losses of the unit's samples added up
  double weight = 0;         ///< over which the sum runs, usually the number of samples
  std::int64_t correct = 0;  ///< see LossSum
  std::int64_t judged = 0;
};

/// The loss of the last stage. `targets` are copies, so that the graph may keep them.
using TorchLoss = std::function<TorchLossSum(const std::vector<at::Tensor>& outputs,
                                             const std::vector<at::Tensor>& targets)>;

/// What the loss of a unit with these targets will weigh, before it runs: the trainer divides
/// gradients by the sum over all units. `targets` are copies.
using TorchLossWeight = std::function<double(const std::vector<at::Tensor>& targets)>;

/// What happens where a module draws from PyTorch's own generator (torch::nn::Dropout, randn).
enum class TorchRandom : std::uint8_t {
  /// The step ends with a sentence: the process has one generator, so ranks that run at the same
  /// time would take numbers from one another.
  Refuse,
  /// It is seeded before each unit, by (seed, step, first sample, the stage's number): for
  /// processes
  /// that run one rank, and the sequential executor. The numbers depend on the cut, not on the
  /// schedule.
  SeedEachUnit
};

struct TorchStageSettings {
  /// Stage 0: nobody wants the gradient of its inputs.
  bool first = false;
  /// Of the last stage; absent elsewhere.
  TorchLoss loss = {};
  /// Where a loss is weighed by something else than samples (tokens): must give what the loss
  /// reports, else the step ends with a sentence. Absent: the number of samples.
  TorchLossWeight loss_weight = {};
  /// Stands before the module's own names of its parameters, so that they are global: "layers.3.".
  std::string prefix = {};
  /// By output: how many inputs of later stages it is (Shape::edges). Empty: one each.
  std::vector<int> output_uses = {};
  TorchRandom random = TorchRandom::Refuse;
  /// Of the stage, for SeedEachUnit: another one for each.
  std::uint32_t number = 0;
  /// BF16: the module and its loss run under PyTorch's autocast, without its cache of weights.
  /// Parameters stay f32; what crosses stages has the dtype that the module returns.
  DType precision = DType::F32;
  /// Of PyTorch and its BLAS, in every thread that runs a pass; another number may give other bits.
  /// OpenBLAS has one number for the process: choose the same one for all stages in it.
  int threads_per_rank = 1;
};

/// A stage of which PyTorch's autograd makes the three passes.
///
///     auto stage = make_torch_stage(torch::nn::Linear(64, 10), {.loss = cross_entropy});
///
/// - Bits: gradients and weights are those of one thread that runs `sum.backward()` for the same
///   micro-batches in ascending order, its gradients zero at the beginning of a step. The whole
///   pass (B) is one run of the engine. The split (I, W) runs it twice, first for the inputs, then
///   from the nodes where the ways to inputs and parameters part, over a graph that is cut there:
///   no derivative is computed twice but for nodes that compute several at once.
/// - Memory: a parameter's value and gradient **are** those of the module. Tensors cross stages
///   without a copy; one whose memory somebody else holds, too, is copied when it travels as a
///   gradient, which its receiver may overwrite. Input memory off 64-byte boundaries is copied.
/// - Parameters are f32 and contiguous; one whose `requires_grad` is false is frozen. Floating
///   buffers (running means) are statistics that take unit after unit, so that such a stage has no
///   copies. Parameters of fewer than two extents do not decay.
/// - Hooks of parameters are called once per unit, on the unit's gradient. Hooks of tensors inside
///   are called once, whether the backward is split or not.
/// - Recompute: the forward keeps its inputs (and the last stage its targets) and runs once more
///   with a graph. Buffers take the unit once.
/// - Stash: what the meter counts of a unit is the memory of all results that its graph holds, its
///   inputs included, as seen when the first unit of its input shapes ran;
///   predict_stash_peaks knows it from then on.
/// - Threads: PyTorch's and OpenBLAS's thread counts are set to `threads_per_rank`, which is 1, in
///   whatever thread runs a pass.
///
/// Throws InvalidArgument, naming the parameter, for what cannot be shared; at a forward pass also
/// when the module has left the memory that training moves (`to()`, gradients set to none), changes
/// its inputs in place or draws random numbers that others draw, too (TorchRandom). An exception of
/// PyTorch comes out as Error with the first line of its message. Cost of a pass beyond PyTorch's
/// own: some microseconds, and in I a walk over the unit's graph. Thread-safety: externally
/// synchronised; no two stages may share a module or a parameter.
class TorchStage final : public StageBody {
 public:
  /// `module` owns parameters and buffers, and is told whether it trains or is evaluated; null
  /// where there are none. `forward` runs it.
  TorchStage(std::shared_ptr<::torch::nn::Module> module,
             TorchForward forward,
             TorchStageSettings settings = {});
  TorchStage(const TorchStage&) = delete;
  TorchStage& operator=(const TorchStage&) = delete;
  ~TorchStage() override;

  TensorList forward(const PassContext& context, TensorList inputs) override;
  TensorList backward(const PassContext& context, TensorList output_gradients) override;
  TensorList backward_input(const PassContext& context, TensorList output_gradients) override;
  void backward_weight(const PassContext& context) override;
  void recompute(const PassContext& context) override;
  [[nodiscard]] bool takes_gradient_per_use() const override { return true; }

  [[nodiscard]] std::vector<Parameter*> parameters() override;
  [[nodiscard]] std::optional<double> loss_weight(const TensorList& targets) const override;
  void reserve(int micro_batches, int slices) override;
  /// All zeros before the first unit has run with a graph; then what one of that size kept,
  /// exactly, or of the nearest size, by the ratio of samples (times positions, where there are
  /// any).
  [[nodiscard]] StashBytes stash_bytes(const UnitSize& size, bool recompute) const override;
  [[nodiscard]] std::size_t stashed_units() const override;
  void abandon_step() noexcept override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace millrace
