// Shared memory, found by name and watched by address.
#include "torch/module_parameters.hpp"

#include <ATen/ATen.h>
#include <algorithm>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>
#include <utility>

#include "millrace/core/error.hpp"
#include "torch/exchange.hpp"

namespace millrace::on_torch {
namespace {

void require_trainable(const std::string& name, const at::Tensor& tensor) {
  require(tensor.layout() == at::kStrided && tensor.scalar_type() == at::kFloat &&
              tensor.device().is_cpu(),
          [&] {
            return "parameter '" + name + "' must be f32 on the CPU to be trained here, it is of " +
                   at::toString(tensor.scalar_type()) + " on " + tensor.device().str();
          });
  require(tensor.is_contiguous(), [&] {
    return "parameter '" + name +
           "' must lie in row-major order without gaps to be trained; give the module its "
           "contiguous()";
  });
}

void require_there(const Parameter& parameter,
                   const Tensor& ours,
                   const at::Tensor& theirs,
                   const char* what) {
  require(theirs.defined() && theirs.data_ptr() == ours.data(), [&] {
    return std::string(what) + " of '" + parameter.name +
           "' is no longer in the memory that training moves; a module must not be moved by to() "
           "nor lose its gradients (zero_grad(set_to_none)) once it is a stage";
  });
}

}  // namespace

ModuleParameters::ModuleParameters(const torch::nn::Module* module, const std::string& prefix)
    : prefix_(prefix) {
  if (module == nullptr) return;
  for (const auto& each : module->named_parameters())
    share_parameter(prefix + each.key(), each.value());
  share_buffers(*module, prefix);
  for (const auto& each : module->named_modules({}, /*include_self=*/false))
    share_buffers(*each.value(), prefix + each.key() + ".");
  registered_ = registered(module);
}

std::vector<ModuleParameters::Registered> ModuleParameters::registered(
    const torch::nn::Module* module) const {
  std::vector<Registered> all;
  if (module == nullptr) return all;
  for (const auto& each : module->named_parameters())
    all.push_back(
        {prefix_ + each.key(), each.value().unsafeGetTensorImpl(), each.value().requires_grad()});
  for (const auto& each : module->named_buffers())
    all.push_back({prefix_ + each.key(), each.value().unsafeGetTensorImpl(), false});
  return all;
}

void ModuleParameters::share_parameter(const std::string& name, const at::Tensor& tensor) {
  const auto is_same = [&](const Shared& other) { return other.tensor.is_same(tensor); };
  if (!tensor.defined() || std::ranges::any_of(parameters_, is_same)) return;
  require_trainable(name, tensor);
  at::Tensor handle = tensor;
  handle.mutable_grad() = at::zeros_like(tensor, at::MemoryFormat::Contiguous);
  auto parameter = std::make_unique<Parameter>(Parameter{.name = name,
                                                         .value = shared(tensor),
                                                         .gradient = shared(handle.grad()),
                                                         .decays = tensor.dim() > 1,
                                                         .frozen = !tensor.requires_grad()});
  if (tensor.requires_grad()) {
    of_end_.push_back(parameters_.size());
    ends_.push_back(torch::autograd::impl::gradient_edge(tensor));
  }
  parameters_.push_back({std::move(handle), std::move(parameter)});
}

/// Whole numbers that stand alone (positions, a mask) are the module's own affair: they would keep
/// a stage from having copies, for nothing.
void ModuleParameters::share_buffers(const torch::nn::Module& module, const std::string& prefix) {
  const auto buffers = module.named_buffers(/*recurse=*/false);
  const bool has_means = std::ranges::any_of(buffers, [](const auto& each) {
    return each.value().defined() && at::isFloatingType(each.value().scalar_type());
  });
  if (!has_means) return;
  for (const auto& each : buffers) share_buffer(prefix + each.key(), each.value());
}

void ModuleParameters::share_buffer(const std::string& name, const at::Tensor& tensor) {
  const auto is_same = [&](const Shared& other) { return other.tensor.is_same(tensor); };
  const bool is_whole = tensor.defined() && !at::isFloatingType(tensor.scalar_type());
  if (!tensor.defined() || std::ranges::any_of(buffers_, is_same)) return;
  if (is_whole && tensor.scalar_type() != at::kLong) return;
  if (!is_whole) require_trainable(name, tensor);
  at::Tensor handle = tensor;
  auto statistic = std::make_unique<Parameter>(Parameter{.name = name,
                                                         .value = shared(tensor),
                                                         .gradient = shared(at::zeros_like(tensor)),
                                                         .decays = false,
                                                         .role = ParameterRole::StatisticInOrder});
  buffers_.push_back({std::move(handle), std::move(statistic)});
}

std::vector<Parameter*> ModuleParameters::all() {
  std::vector<Parameter*> all;
  for (const auto* list : {&parameters_, &buffers_})
    for (const Shared& shared : *list) all.push_back(shared.parameter.get());
  return all;
}

std::vector<const void*> ModuleParameters::memory() const {
  std::vector<const void*> memory;
  for (const auto* list : {&parameters_, &buffers_})
    for (const Shared& each : *list) memory.push_back(each.tensor.storage().data());
  return memory;
}

void ModuleParameters::require_same_tensors(const torch::nn::Module* module) const {
  const std::vector<Registered> now = registered(module);
  for (std::size_t i = 0; i < std::max(now.size(), registered_.size()); ++i) {
    const bool is_gone = i >= now.size();
    const bool is_new = i >= registered_.size();
    const std::string& name = is_gone ? registered_[i].name : now[i].name;
    require(!is_gone && !is_new && now[i].name == registered_[i].name &&
                now[i].tensor == registered_[i].tensor,
            [&] {
              return "'" + name + "' of the module was " + (is_gone ? "removed" : "registered") +
                     " after its stage was made; training moves what was there then: make the "
                     "pipeline again, or copy into the tensor that was there";
            });
    require(now[i].wants_gradient == registered_[i].wants_gradient, [&] {
      return "requires_grad of '" + name +
             "' was changed after its stage was made; freeze it by TrainingState::freeze";
    });
  }
}

std::string ModuleParameters::unused_like(
    const at::Tensor& tensor, const std::unordered_set<torch::autograd::Node*>& graph) const {
  for (std::size_t i = 0; i < ends_.size(); ++i) {
    const Shared& candidate = parameters_[of_end_[i]];
    if (candidate.tensor.sizes() == tensor.sizes() && !graph.contains(ends_[i].function.get()))
      return candidate.parameter->name;
  }
  return {};
}

void ModuleParameters::require_same_memory() const {
  for (const Shared& each : parameters_) {
    require_there(*each.parameter, each.parameter->value, each.tensor, "the value");
    require_there(*each.parameter, each.parameter->gradient, each.tensor.grad(), "the gradient");
  }
  for (const Shared& each : buffers_)
    require_there(*each.parameter, each.parameter->value, each.tensor, "the value");
}

void ModuleParameters::add(const torch::autograd::variable_list& gradients) {
  const at::NoGradGuard plain;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    Shared& to = parameters_[of_end_[i]];
    at::Tensor gradient = gradients[i];
    for (const auto& hook : torch::autograd::impl::hooks(to.tensor))
      gradient = (*hook)({gradient})[0];
    to.tensor.mutable_grad().add_(gradient);
  }
}

}  // namespace millrace::on_torch
