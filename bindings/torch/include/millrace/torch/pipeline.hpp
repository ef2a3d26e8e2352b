// A torch::nn::Sequential cut into the stages of a pipeline, with its loss behind the last one.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "millrace/torch/stage.hpp"

namespace torch::nn {
class Sequential;
}  // namespace torch::nn

namespace millrace {

/// Stages of as many modules each, one more or less.
struct CutEvenly {};

/// Stages whose largest has the fewest parameters.
struct CutByParameters {};

/// Stages whose slowest is fastest: every module runs forward and backward on a unit of your own,
/// once and then `repetitions` times, of which the median counts. Buffers and PyTorch's generator
/// are afterwards as they were. Times differ from run to run: processes of one training take the
/// boundaries that one of them has found (torch_boundaries).
struct CutByTime {
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> targets = {};  ///< given: the last module's time includes the loss
  int repetitions = 5;
};

/// Where a list of modules is cut: in one of those ways, or at boundaries of your own, from 0 to
/// the number of modules, as in partition.hpp.
using TorchCut = std::variant<CutEvenly, CutByParameters, CutByTime, std::vector<int>>;

struct TorchPipelineOptions {
  TorchCut cut = CutEvenly{};
  TorchRandom random = TorchRandom::Refuse;  ///< see TorchStageSettings, as all that follow
  TorchLossWeight loss_weight = {};
  DType precision = DType::F32;  ///< F32 or BF16
  int threads_per_rank = 1;
};

/// The modules of `model`, in order, as `stages` stages for the constructor of Trainer that takes
/// bodies. A parameter is called as in PyTorch with "layers." before it: "layers.3.weight".
///
///     torch::nn::Sequential model(torch::nn::Linear(64, 96), torch::nn::ReLU(),
///                                 torch::nn::Linear(96, 10));
///     const Program program = generate("zb-h1", {.ranks = 2, .micro_batches = 8});
///     Trainer trainer({program}, torch_pipeline(model, cross_entropy, 2));
///
/// The first module takes what the data give, up to four tensors; between modules travels a tensor
/// or a std::vector of tensors. Throws InvalidArgument when there are fewer modules than stages,
/// the boundaries do not fit, two modules of different stages share a parameter (named), or a
/// parameter cannot be trained (see TorchStage). The module stays yours: read it between steps.
[[nodiscard]] std::vector<std::unique_ptr<StageBody>> torch_pipeline(
    const ::torch::nn::Sequential& model,
    TorchLoss loss,
    int stages,
    const TorchPipelineOptions& options = {});

/// The boundaries at which torch_pipeline would cut. Throws as it does.
[[nodiscard]] std::vector<int> torch_boundaries(const ::torch::nn::Sequential& model,
                                                const TorchLoss& loss,
                                                int stages,
                                                const TorchPipelineOptions& options = {});

}  // namespace millrace
