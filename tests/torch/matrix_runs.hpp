// Runs a case of the matrix of PyTorch's models, and says what it has to give: what plain autograd
// gives in one thread, micro-batch after micro-batch, or in the order in which the program adds
// them. The plain loop shares no code with stages, executors and trainer.
#pragma once

#include <ATen/autocast_mode.h>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "millrace/stages/partition.hpp"
#include "millrace/torch/dropout.hpp"
#include "millrace/torch/pass.hpp"
#include "millrace/torch/pipeline.hpp"
#include "millrace/training/ranks.hpp"
#include "millrace/training/state.hpp"
#include "millrace/training/trainer.hpp"
#include "torch/matrix.hpp"
#include "torch/residual_network.hpp"
#include "torch/small_gpt.hpp"
#include "torch/torch_units.hpp"

namespace millrace::testing_torch {

inline constexpr int kMatrixSteps = 5;

/// Digests by name: of each step every gradient, at the end every value and buffer.
using Bits = std::map<std::string, std::string>;

/// Names of what two runs have not in common.
inline std::vector<std::string> differences(const Bits& one, const Bits& other) {
  std::vector<std::string> names;
  for (const auto& [name, digest] : one)
    if (const auto same = other.find(name); same == other.end() || same->second != digest)
      names.push_back(name);
  for (const auto& [name, digest] : other)
    if (!one.contains(name)) names.push_back(name);
  return names;
}

inline std::string digest_of(const torch::Tensor& tensor) {
  const torch::Tensor dense = tensor.contiguous();
  return bytes_digest({static_cast<const std::byte*>(dense.data_ptr()), dense.nbytes()});
}

inline std::string gradient_name(int step, const std::string& parameter) {
  return "gradient " + std::to_string(step) + " layers." + parameter;
}

/// A model, its loss and its data.
struct TorchTask {
  torch::nn::Sequential model;
  TorchLoss loss;
  std::vector<TorchUnits::Tensors> inputs, targets;
  double weight = 0;

  [[nodiscard]] TorchUnits units() const { return {inputs, targets}; }
};

/// The GPT with a dropout, so that its random numbers are compared, too.
inline torch::nn::Sequential dropping_gpt() {
  const torch::nn::Sequential layers = small_gpt();
  torch::nn::Sequential model;
  for (const auto& module : *layers) {
    model->push_back(module);
    if (model->size() == 3) model->push_back(TorchDropout(0.2, 1));
  }
  return model;
}

inline TorchTask task_of(const std::string& model) {
  if (model == "resnet") {
    auto [inputs, targets] = images(kMatrixMicroBatches);
    TorchTask task{small_resnet(), class_loss, std::move(inputs), std::move(targets)};
    for (const auto& each : task.targets) task.weight += static_cast<double>(each[0].size(0));
    return task;
  }
  const Sentences data(kMatrixMicroBatches);
  TorchTask task{dropping_gpt(), next_word_loss, {}, {}, data.total_weight()};
  for (const torch::Tensor& tokens : data.tokens()) task.inputs.push_back({tokens});
  for (const torch::Tensor& next : data.next()) task.targets.push_back({next});
  return task;
}

/// By replica and stage the micro-batches in the order in which their gradients are added.
using AddingOrder = std::vector<std::vector<std::vector<int>>>;

inline AddingOrder adding_order(const Program& program) {
  const Shape& shape = program.shape;
  AddingOrder order(static_cast<std::size_t>(shape.replicas()),
                    std::vector<std::vector<int>>(static_cast<std::size_t>(shape.stages())));
  for (const auto& rank : program.ranks)
    for (const Action& action : rank)
      if (gives_weight_gradient(action.op))
        order[action.replica().index()][action.stage.index()].push_back(action.micro_batch.value);
  return order;
}

/// Autograd in one thread.
class PlainTraining {
 public:
  PlainTraining(TorchTask task, DType precision)
      : task_(std::move(task)), precision_(precision), updates_(*task_.model) {}

  /// `order`: of a program that does not add micro-batches as they come.
  Bits run(const std::optional<AddingOrder>& order) {
    at::set_num_threads(1);
    for (int step = 1; step <= kMatrixSteps; ++step) {
      updates_.zero();
      if (order)
        add_in(*order, step);
      else
        for (std::size_t i = 0; i < task_.inputs.size(); ++i)
          loss_of(i, step).backward(torch::full({}, 1 / task_.weight));
      for (const auto& each : task_.model->named_parameters())
        bits_[gradient_name(step, each.key())] = digest_of(each.value().grad());
      updates_.update(step);
    }
    for (const auto& each : task_.model->named_parameters())
      bits_["layers." + each.key()] = digest_of(each.value());
    for (const auto& each : task_.model->named_buffers())
      bits_["layers." + each.key()] = digest_of(each.value());
    return bits_;
  }

 private:
  /// PyTorch's autocast as a stage has it.
  class Region {
   public:
    explicit Region(DType precision) {
      at::autocast::set_autocast_cpu_dtype(torch::kBFloat16);
      at::autocast::set_autocast_cache_enabled(false);
      at::autocast::set_cpu_enabled(precision == DType::BF16);
    }
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;
    ~Region() { at::autocast::set_cpu_enabled(false); }
  };

  torch::Tensor loss_of(std::size_t micro_batch, int step) {
    PassContext context;
    context.seed = StepOptions{}.seed;
    context.step = static_cast<std::uint64_t>(step - 1);
    for (std::size_t i = 0; i < micro_batch; ++i)
      context.first_sample += task_.inputs[i][0].size(0);
    const TorchPass pass(context);
    const Region region(precision_);
    const auto outputs = task_.model->forward(task_.inputs[micro_batch][0]);
    return task_.loss({outputs}, task_.targets[micro_batch]).sum;
  }

  /// Of all micro-batches apart, then added: each copy's in its order, then the copies.
  void add_in(const AddingOrder& order, int step) {
    const std::vector<torch::Tensor> parameters = task_.model->parameters();
    std::vector<std::vector<torch::Tensor>> apart;
    for (std::size_t i = 0; i < task_.inputs.size(); ++i)
      apart.push_back(torch::autograd::grad(
          {loss_of(i, step)}, parameters, {torch::full({}, 1 / task_.weight)}));
    const std::vector<std::size_t> stages = stages_of_parameters(order.front().size());
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      std::vector<torch::Tensor> copies;
      for (const auto& copy : order) {
        copies.push_back(torch::zeros_like(parameters[p]));
        for (const int i : copy[stages[p]])
          copies.back().add_(apart[static_cast<std::size_t>(i)][p]);
      }
      for (std::size_t i = 1; i < copies.size(); ++i) copies[0].add_(copies[i]);
      parameters[p].grad().copy_(copies[0]);
    }
  }

  [[nodiscard]] std::vector<std::size_t> stages_of_parameters(std::size_t stages) const {
    const auto layers = static_cast<int>(task_.model->size());
    const std::vector<int> boundaries = even_boundaries(layers, static_cast<int>(stages));
    std::vector<std::size_t> of;
    for (std::size_t stage = 0; stage < stages; ++stage)
      for (int i = boundaries[stage]; i < boundaries[stage + 1]; ++i)
        of.insert(
            of.end(), task_.model->ptr(static_cast<std::size_t>(i))->parameters().size(), stage);
    return of;
  }

  TorchTask task_;
  DType precision_;
  PlainUpdates updates_;
  Bits bits_;
};

/// What a case has to give.
inline const Bits& wanted(const TorchCase& of) {
  std::optional<AddingOrder> order;
  if (has_own_order(of.schedule)) order = adding_order(program_of(of));
  static std::map<std::tuple<std::string, DType, std::optional<AddingOrder>>, Bits> known;
  Bits& bits = known[{of.model, of.precision, order}];
  if (bits.empty()) bits = PlainTraining(task_of(of.model), of.precision).run(order);
  return bits;
}

/// The stages of a program, of one rank or of all: of each copy of the model a pipeline.
class TorchCopies {
 public:
  TorchCopies(const TorchCase& of, const Program& program, std::optional<Rank> rank) {
    for (int copy = 0; copy < program.shape.replicas(); ++copy) {
      TorchTask task = task_of(of.model);
      const int stages = program.shape.stages();
      auto bodies = torch_pipeline(task.model, task.loss, stages, {.precision = of.precision});
      const auto boundaries = even_boundaries(static_cast<int>(task.model->size()), stages);
      for (int stage = 0; stage < stages; ++stage) {
        if (rank && program.shape.rank(Replica{copy}, Stage{stage}) != *rank) continue;
        const auto at = static_cast<std::size_t>(stage);
        bodies_.push_back(std::move(bodies[at]));
        for (int i = boundaries[at]; i < boundaries[at + 1]; ++i)
          modules_.emplace_back(i, task.model->ptr(static_cast<std::size_t>(i)));
      }
    }
  }

  [[nodiscard]] std::vector<std::unique_ptr<StageBody>> take() { return std::move(bodies_); }

  /// What the user's modules hold. Copies have the same.
  void add_values(Bits& bits) const {
    for (const auto& [number, module] : modules_) {
      const std::string prefix = "layers." + std::to_string(number) + ".";
      const auto add = [&](const auto& named) {
        for (const auto& each : named) {
          const auto [at, is_new] = bits.emplace(prefix + each.key(), digest_of(each.value()));
          if (!is_new && at->second != digest_of(each.value())) at->second = "copies differ";
        }
      };
      add(module->named_parameters());
      add(module->named_buffers());
    }
  }

 private:
  std::vector<std::unique_ptr<StageBody>> bodies_;
  std::vector<std::pair<int, std::shared_ptr<torch::nn::Module>>> modules_;
};

inline TrainerOptions matrix_options(const TorchCase& of) {
  TrainerOptions options;
  if (of.place != "ipc" && of.place != "tcp") options.run.executor = of.place;
  options.step.learning_rate.base = kLearningRate;
  return options;
}

/// Trains, and adds what this process has of the model.
inline Bits train_case(Trainer& trainer, const TorchCase& of, const TorchCopies& copies) {
  Bits bits;
  int step = 0;
  trainer.before_update = [&](std::span<Parameter* const> parameters) {
    ++step;
    for (const Parameter* each : parameters)
      if (each->role == ParameterRole::Trained)
        bits["gradient " + std::to_string(step) + " " + each->name] = tensor_digest(each->gradient);
  };
  const TorchTask task = task_of(of.model);
  TorchUnits data = task.units();
  for (int i = 0; i < kMatrixSteps; ++i) trainer.step(data, task.weight);
  copies.add_values(bits);
  return bits;
}

/// In this process.
inline Bits run(const TorchCase& of) {
  const Program program = program_of(of);
  TorchCopies copies(of, program, {});
  Trainer trainer({program}, copies.take(), matrix_options(of));
  return train_case(trainer, of, copies);
}

/// One rank's part.
inline Bits run(const TorchCase& of, Endpoint& endpoint, ProcessGroup& group) {
  const Program program = program_of(of);
  const TrainerOptions options = matrix_options(of);
  TorchCopies copies(of, program, endpoint.rank());
  Trainer trainer(rank_parts({program}, copies.take(), options, endpoint, group));
  return train_case(trainer, of, copies);
}

}  // namespace millrace::testing_torch
