// A module's parameters and running statistics as those of a stage: the same memory under a global
// name, and a watch that it stays the same.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <unordered_set>
#include <vector>

#include "millrace/stages/stage.hpp"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace millrace::on_torch {

/// Thread-safety: externally synchronised.
class ModuleParameters {
 public:
  /// Gives every parameter a gradient of zeros. Statistics are floating buffers, and those of whole
  /// numbers beside them in one module (a count of batches beside running means). Throws
  /// InvalidArgument, naming it, for a parameter that is not f32, not dense in row-major order or
  /// of more than 6 extents, and for a buffer that cannot be a statistic.
  ModuleParameters(const torch::nn::Module* module, const std::string& prefix);

  /// Parameters first, statistics behind them; pointers stay valid.
  [[nodiscard]] std::vector<Parameter*> all();

  /// Where the gradients of the parameters that want one arrive.
  [[nodiscard]] const torch::autograd::edge_list& ends() const { return ends_; }

  /// The memory of all of them.
  [[nodiscard]] std::vector<const void*> memory() const;

  /// Throws InvalidArgument when `module` has other parameters or buffers than it had, or other
  /// ones of them want a gradient, naming the first. Cost: a microsecond each.
  void require_same_tensors(const torch::nn::Module* module) const;

  /// The name of a parameter of that shape of which the graph knows nothing; empty where there is
  /// none.
  [[nodiscard]] std::string unused_like(
      const at::Tensor& tensor, const std::unordered_set<torch::autograd::Node*>& graph) const;

  /// Throws InvalidArgument when a parameter, gradient or buffer lies elsewhere than it did, naming
  /// it. Cost: nanoseconds each.
  void require_same_memory() const;

  /// Adds one unit's gradients, in the order of `ends`, each after the hooks of its parameter.
  void add(const torch::autograd::variable_list& gradients);

 private:
  struct Shared {
    at::Tensor tensor;  // the module's own handle
    std::unique_ptr<Parameter> parameter;
  };

  /// What the module has registered under a name.
  struct Registered {
    std::string name;
    const c10::TensorImpl* tensor = nullptr;
    bool wants_gradient = false;
  };

  void share_parameter(const std::string& name, const at::Tensor& tensor);
  void share_buffers(const torch::nn::Module& module, const std::string& prefix);
  void share_buffer(const std::string& name, const at::Tensor& tensor);
  [[nodiscard]] std::vector<Registered> registered(const torch::nn::Module* module) const;

  std::string prefix_;
  std::vector<Registered> registered_;
  std::vector<Shared> parameters_;
  std::vector<Shared> buffers_;
  std::vector<std::size_t> of_end_;  // in parameters_
  torch::autograd::edge_list ends_;
};

}  // namespace millrace::on_torch
