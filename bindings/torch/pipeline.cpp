// Modules grouped into stages; what two of them would share is refused.
#include "millrace/torch/pipeline.hpp"

#include <map>
#include <torch/nn/modules/container/sequential.h>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/stages/partition.hpp"
#include "torch/module_times.hpp"

namespace millrace {
namespace {

using torch::nn::AnyModule;
using torch::nn::AnyValue;

std::vector<AnyModule> modules_of(const torch::nn::Sequential& model) {
  std::vector<AnyModule> modules;
  for (auto& module : *model) modules.push_back(module);
  return modules;
}

std::vector<double> parameter_counts(const std::vector<AnyModule>& modules) {
  std::vector<double> counts;
  for (const AnyModule& module : modules) {
    double count = 0;
    for (const at::Tensor& parameter : module.ptr()->parameters())
      count += static_cast<double>(parameter.numel());
    counts.push_back(count);
  }
  return counts;
}

std::vector<int> boundaries_of(const std::vector<AnyModule>& modules,
                               const TorchLoss& loss,
                               int stages,
                               const TorchPipelineOptions& options) {
  const TorchCut& cut = options.cut;
  const auto count = static_cast<int>(modules.size());
  if (std::holds_alternative<CutEvenly>(cut)) return even_boundaries(count, stages);
  if (std::holds_alternative<CutByParameters>(cut))
    return balanced_boundaries(parameter_counts(modules), stages);
  if (const auto* sample = std::get_if<CutByTime>(&cut))
    return balanced_boundaries(on_torch::module_seconds(modules, loss, *sample, options), stages);
  std::vector<int> boundaries = std::get<std::vector<int>>(cut);
  check_boundaries(boundaries, count);
  require(boundaries.size() == static_cast<std::size_t>(stages) + 1, [&] {
    return std::to_string(boundaries.size()) + " boundaries cut a model into " +
           std::to_string(boundaries.size() - 1) + " stages, " + std::to_string(stages) +
           " were asked for";
  });
  return boundaries;
}

/// Two stages run at the same time, and each adds to what it takes for its own gradient.
void refuse_shared(const std::vector<AnyModule>& modules, const std::vector<int>& boundaries) {
  struct Place {
    std::size_t stage = 0;
    std::string name;
  };
  std::map<const void*, Place> seen;
  for (std::size_t stage = 0; stage + 1 < boundaries.size(); ++stage)
    for (int i = boundaries[stage]; i < boundaries[stage + 1]; ++i)
      for (const auto& each : modules[static_cast<std::size_t>(i)].ptr()->named_parameters()) {
        const std::string name = "layers." + std::to_string(i) + "." + each.key();
        const auto [place, is_new] =
            seen.emplace(each.value().unsafeGetTensorImpl(), Place{stage, name});
        require(is_new || place->second.stage == stage, [&] {
          return "stages " + std::to_string(place->second.stage) + " and " + std::to_string(stage) +
                 " share the tensor '" + place->second.name + "' ('" + name +
                 "'); give the second module a tensor of its own and say .tied = {{\"" +
                 place->second.name + "\", \"" + name +
                 "\"}} in TrainerOptions, which keeps both equal, or cut the model so that one "
                 "stage has both";
        });
      }
}

AnyValue first_value(AnyModule& module, const std::vector<at::Tensor>& inputs) {
  switch (inputs.size()) {
    case 1:
      return module.any_forward(inputs[0]);
    case 2:
      return module.any_forward(inputs[0], inputs[1]);
    case 3:
      return module.any_forward(inputs[0], inputs[1], inputs[2]);
    case 4:
      return module.any_forward(inputs[0], inputs[1], inputs[2], inputs[3]);
    default:
      throw InvalidArgument("the first module takes 1 to 4 tensors, the data give " +
                            std::to_string(inputs.size()));
  }
}

std::vector<at::Tensor> tensors_of(AnyValue value) {
  if (auto* only = value.try_get<at::Tensor>()) return {std::move(*only)};
  if (auto* all = value.try_get<std::vector<at::Tensor>>()) return std::move(*all);
  throw InvalidArgument(
      "what a module gives to the next stage must be a tensor or a std::vector of tensors");
}

/// Owns the stage's modules under their numbers in the whole model.
std::shared_ptr<torch::nn::Module> owner_of(const std::vector<AnyModule>& modules, int first) {
  class Owner : public torch::nn::Module {};
  auto owner = std::make_shared<Owner>();
  for (std::size_t i = 0; i < modules.size(); ++i)
    owner->register_module(std::to_string(first + static_cast<int>(i)), modules[i].ptr());
  return owner;
}

}  // namespace

TorchForward on_torch::chain_of(std::vector<AnyModule> modules, bool first) {
  return [modules = std::move(modules), first](const std::vector<at::Tensor>& inputs) mutable {
    AnyValue value = first || inputs.size() == 1 ? first_value(modules.front(), inputs)
                                                 : modules.front().any_forward(inputs);
    for (std::size_t i = 1; i < modules.size(); ++i)
      value = modules[i].any_forward(std::move(value));
    return tensors_of(std::move(value));
  };
}

std::vector<int> torch_boundaries(const torch::nn::Sequential& model,
                                  const TorchLoss& loss,
                                  int stages,
                                  const TorchPipelineOptions& options) {
  return boundaries_of(modules_of(model), loss, stages, options);
}

std::vector<std::unique_ptr<StageBody>> torch_pipeline(const torch::nn::Sequential& model,
                                                       TorchLoss loss,
                                                       int stages,
                                                       const TorchPipelineOptions& options) {
  require(loss != nullptr, "a pipeline needs a loss for its last stage");
  const std::vector<AnyModule> modules = modules_of(model);
  const std::vector<int> boundaries = boundaries_of(modules, loss, stages, options);
  refuse_shared(modules, boundaries);
  std::vector<std::unique_ptr<StageBody>> bodies;
  for (std::size_t stage = 0; stage + 1 < boundaries.size(); ++stage) {
    const LayerRange range = layers_of(boundaries, stage);
    std::vector<AnyModule> own(modules.begin() + range.first, modules.begin() + range.last);
    auto owner = owner_of(own, range.first);
    TorchStageSettings settings{.first = stage == 0,
                                .prefix = "layers.",
                                .random = options.random,
                                .number = static_cast<std::uint32_t>(stage),
                                .precision = options.precision,
                                .threads_per_rank = options.threads_per_rank};
    if (stage + 2 == boundaries.size()) {
      settings.loss = std::move(loss);
      settings.loss_weight = options.loss_weight;
    }
    bodies.push_back(std::make_unique<TorchStage>(
        std::move(owner), on_torch::chain_of(std::move(own), stage == 0), std::move(settings)));
  }
  return bodies;
}

}  // namespace millrace
