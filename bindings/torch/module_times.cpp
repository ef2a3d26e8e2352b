// Each module runs as a stage, with all that a stage costs, on what the one before it gave.
#include "torch/module_times.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "millrace/core/error.hpp"
#include "torch/exchange.hpp"

namespace millrace::on_torch {
namespace {

using Tensors = std::vector<at::Tensor>;
using torch::nn::AnyModule;

/// PyTorch's generator, and modules' buffers and gradients, given back what they held.
class AsBefore {
 public:
  explicit AsBefore(const std::vector<AnyModule>& modules)
      : generator_(at::detail::getDefaultCPUGenerator()), state_(generator_.get_state()) {
    for (const AnyModule& module : modules)
      for (const at::Tensor& buffer : module.ptr()->buffers())
        if (buffer.defined()) kept_.emplace_back(buffer, buffer.detach().clone());
    for (const AnyModule& module : modules)
      for (const at::Tensor& parameter : module.ptr()->parameters())
        gradients_.emplace_back(parameter, parameter.grad());
  }
  AsBefore(const AsBefore&) = delete;
  AsBefore& operator=(const AsBefore&) = delete;
  ~AsBefore() {
    const at::NoGradGuard plain;
    for (const auto& [buffer, contents] : kept_) buffer.variable_data().copy_(contents);
    for (auto& [parameter, gradient] : gradients_) parameter.mutable_grad() = gradient;
    generator_.set_state(state_);
  }

 private:
  at::Generator generator_;
  at::Tensor state_;
  std::vector<std::pair<at::Tensor, at::Tensor>> kept_;
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients_;
};

/// Made of ones; nothing for whole numbers.
TensorList ones_for(const PassContext& context, const Tensors& outputs) {
  TensorList gradients;
  for (const at::Tensor& output : outputs)
    gradients.push_back(output.is_floating_point()
                            ? given(context, at::ones_like(output), "a gradient")
                            : Tensor());
  return gradients;
}

/// One unit through one stage, some times: seconds, and what comes out.
class Trial {
 public:
  Trial(TorchStage& stage, const Tensors& inputs, const Tensors& targets)
      : stage_(stage), inputs_(inputs), targets_(given(context_, targets)) {
    context_.loss = &loss_;
    context_.targets = &targets_;
  }

  double seconds() {
    using Clock = std::chrono::steady_clock;
    TensorList inputs = given(context_, inputs_);
    const auto start = Clock::now();
    TensorList given_on = stage_.forward(context_, std::move(inputs));
    const auto between = Clock::now();
    outputs_ = copied(given_on);
    TensorList gradients = ones_for(context_, outputs_);
    given_on = {};
    const auto back = Clock::now();
    (void)stage_.backward(context_, std::move(gradients));
    return std::chrono::duration<double>(between - start + (Clock::now() - back)).count();
  }

  Tensors outputs() { return std::move(outputs_); }

 private:
  TorchStage& stage_;
  const Tensors& inputs_;
  PassContext context_;
  TensorList targets_;
  LossSum loss_;
  Tensors outputs_;
};

}  // namespace

std::vector<double> module_seconds(const std::vector<AnyModule>& modules,
                                   const TorchLoss& loss,
                                   const CutByTime& sample,
                                   const TorchPipelineOptions& options) {
  require(sample.repetitions >= 1, [&] {
    return "times are measured at least once, not " + std::to_string(sample.repetitions) + " times";
  });
  const AsBefore as_before(modules);
  std::vector<double> medians;
  Tensors inputs = sample.inputs;
  for (std::size_t i = 0; i < modules.size(); ++i) {
    const bool judged = i + 1 == modules.size() && !sample.targets.empty();
    TorchStage stage(modules[i].ptr(),
                     chain_of({modules[i]}, i == 0),
                     {.first = i == 0,
                      .loss = judged ? loss : TorchLoss(),
                      .random = options.random,
                      .precision = options.precision,
                      .threads_per_rank = options.threads_per_rank});
    Trial trial(stage, inputs, sample.targets);
    std::vector<double> seconds;
    (void)trial.seconds();  // the first one takes memory
    for (int run = 0; run < sample.repetitions; ++run) seconds.push_back(trial.seconds());
    const auto middle = seconds.begin() + sample.repetitions / 2;
    std::ranges::nth_element(seconds, middle);
    medians.push_back(*middle);
    inputs = trial.outputs();
  }
  return medians;
}

}  // namespace millrace::on_torch
