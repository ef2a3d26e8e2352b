// Guards around a module, inside each other.
#include "torch/module_run.hpp"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/nn/module.h>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/torch/pass.hpp"
#include "torch/generator.hpp"

namespace millrace::on_torch {
namespace {

std::vector<at::Tensor> buffers_of(const torch::nn::Module* module) {
  return module == nullptr ? std::vector<at::Tensor>() : module->buffers();
}

/// Gives buffers back what they held. Their version counters do not notice, since no graph reads
/// them in its backward.
class KeptBuffers {
 public:
  KeptBuffers(const std::vector<at::Tensor>& buffers, bool wanted) {
    if (!wanted) return;
    for (const at::Tensor& buffer : buffers)
      if (buffer.defined()) kept_.emplace_back(buffer, buffer.detach().clone());
  }
  KeptBuffers(const KeptBuffers&) = delete;
  KeptBuffers& operator=(const KeptBuffers&) = delete;
  ~KeptBuffers() {
    const at::NoGradGuard plain;
    for (const auto& [buffer, contents] : kept_) buffer.variable_data().copy_(contents);
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> kept_;
};

/// One region of bf16, its cache of weights off: a pass without a graph would leave casts in it
/// that no gradient goes through.
class Autocast {
 public:
  explicit Autocast(DType precision)
      : wanted_(precision == DType::BF16),
        enabled_(at::autocast::is_cpu_enabled()),
        dtype_(at::autocast::get_autocast_cpu_dtype()),
        caches_(at::autocast::is_autocast_cache_enabled()) {
    if (!wanted_) return;
    at::autocast::set_autocast_cpu_dtype(at::kBFloat16);
    at::autocast::set_cpu_enabled(true);
    at::autocast::set_autocast_cache_enabled(false);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  ~Autocast() {
    if (!wanted_) return;
    at::autocast::set_autocast_cpu_dtype(dtype_);
    at::autocast::set_cpu_enabled(enabled_);
    at::autocast::set_autocast_cache_enabled(caches_);
  }

 private:
  bool wanted_;
  bool enabled_;
  at::ScalarType dtype_;
  bool caches_;
};

/// A graph must not lose what it began with, nor a recompute what it is given again.
void refuse_change_in_place(const std::vector<at::Tensor>& inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i)
    require(!inputs[i].defined() || inputs[i]._version() == 0, [&] {
      return "the module changed its stage's input " + std::to_string(i) +
             " in place; let its first layer make a tensor of its own";
    });
}

}  // namespace

ModuleRun::ModuleRun(std::shared_ptr<torch::nn::Module> module,
                     TorchForward forward,
                     TorchStageSettings settings)
    : module_(std::move(module)),
      forward_(std::move(forward)),
      settings_(std::move(settings)),
      parameters_(module_.get(), settings_.prefix),
      buffers_(buffers_of(module_.get())) {
  require(forward_ != nullptr, "a stage needs a function for its forward");
  require(settings_.threads_per_rank >= 1 && settings_.threads_per_rank <= 1024, [&] {
    return "a stage of PyTorch has 1 to 1024 threads_per_rank, not " +
           std::to_string(settings_.threads_per_rank);
  });
  require(settings_.precision == DType::F32 || settings_.precision == DType::BF16, [&] {
    return std::string("a module of PyTorch computes in f32 or bf16 on processors, not in ") +
           name_of(settings_.precision);
  });
}

Outcome ModuleRun::operator()(const PassContext& context,
                              std::vector<at::Tensor>& inputs,
                              const std::vector<at::Tensor>& targets,
                              bool graph,
                              bool again) {
  if (checked_step_ != context.step) parameters_.require_same_tensors(module_.get());
  checked_step_ = context.step;
  parameters_.require_same_memory();
  if (module_ != nullptr && module_->is_training() != context.training)
    module_->train(context.training);
  for (at::Tensor& input : inputs)
    if (graph && !settings_.first && input.defined() && input.is_floating_point())
      input.set_requires_grad(true);
  const KeptBuffers kept(buffers_, again);
  const at::AutoGradMode mode(graph);
  const Autocast autocast(settings_.precision);
  const TorchPass pass(context);
  Outcome outcome =
      context.training ? run_watched(context, inputs, targets) : run(context, inputs, targets);
  refuse_change_in_place(inputs);
  return outcome;
}

/// In training, nobody but this unit may draw from PyTorch's generator.
Outcome ModuleRun::run_watched(const PassContext& context,
                               const std::vector<at::Tensor>& inputs,
                               const std::vector<at::Tensor>& targets) {
  if (settings_.random == TorchRandom::SeedEachUnit) {
    seed_generator(context, settings_.number);
    return run(context, inputs, targets);
  }
  if (!first_step_) first_step_ = context.step;
  if (!draws_ && *first_step_ != context.step) return run(context, inputs, targets);
  const GeneratorWatch watch;
  Outcome outcome = run(context, inputs, targets);
  draws_ = watch.has_drawn();
  require(!draws_,
          "random numbers were drawn from PyTorch's generator while the module ran; the process "
          "has one generator for all ranks, so results would depend on who comes first. Use "
          "TorchDropout, or TorchRandom::SeedEachUnit where one rank at a time runs here");
  return outcome;
}

Outcome ModuleRun::run(const PassContext& context,
                       const std::vector<at::Tensor>& inputs,
                       const std::vector<at::Tensor>& targets) {
  Outcome outcome;
  outcome.outputs = forward_(inputs);
  require(!outcome.outputs.empty(), "the module gave no tensor, its stage needs at least one");
  if (settings_.loss == nullptr || (!context.training && targets.empty())) return outcome;
  require(!targets.empty(), "the loss of a stage needs targets, the data gave none");
  outcome.loss = settings_.loss(outcome.outputs, targets);
  require(outcome.loss.sum.defined() && outcome.loss.sum.numel() == 1,
          "a loss must give its sum as one number");
  require_announced(outcome.loss.weight, targets);
  return outcome;
}

/// The gradients of the step are divided by what was said before it began.
void ModuleRun::require_announced(double weight, const std::vector<at::Tensor>& targets) const {
  if (settings_.loss_weight == nullptr) return;
  const double announced = settings_.loss_weight(targets);
  require(weight == announced, [&] {
    return "the loss of the unit weighed " + std::to_string(weight) +
           ", loss_weight said of its targets " + std::to_string(announced);
  });
}

}  // namespace millrace::on_torch
