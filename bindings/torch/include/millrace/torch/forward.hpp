// The forward of a module of any signature as the one that a stage takes: a module whose
// forward(a, b) returns a tuple becomes a function from a list to a list.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "millrace/core/error.hpp"
#include "millrace/torch/stage.hpp"

namespace millrace {
namespace on_torch {

inline std::vector<at::Tensor> listed(at::Tensor only) {
  return {std::move(only)};
}

inline std::vector<at::Tensor> listed(std::vector<at::Tensor> all) {
  return all;
}

template <class... Tensors>
std::vector<at::Tensor> listed(std::tuple<Tensors...> all) {
  return std::apply([](auto&... each) { return std::vector<at::Tensor>{std::move(each)...}; }, all);
}

template <class One, class Other>
std::vector<at::Tensor> listed(std::pair<One, Other> both) {
  return {std::move(both.first), std::move(both.second)};
}

template <class Module, class Result, class... Arguments>
TorchForward bound(std::shared_ptr<Module> module, Result (Module::*forward)(Arguments...)) {
  if constexpr (sizeof...(Arguments) == 1 &&
                (std::is_same_v<std::remove_cvref_t<Arguments>, std::vector<at::Tensor>> && ...)) {
    return [module, forward](const std::vector<at::Tensor>& inputs) {
      return listed(((*module).*forward)(inputs));
    };
  } else {
    return [module, forward](const std::vector<at::Tensor>& inputs) {
      constexpr std::size_t kTakes = sizeof...(Arguments);
      require(inputs.size() == kTakes, [&] {
        return "the module's forward takes " + std::to_string(kTakes) +
               (kTakes == 1 ? " tensor" : " tensors") + ", the stage is given " +
               std::to_string(inputs.size());
      });
      return [&]<std::size_t... i>(std::index_sequence<i...>) {
        return listed(((*module).*forward)(inputs[i]...));
      }
      (std::make_index_sequence<kTakes>());
    };
  }
}

}  // namespace on_torch

/// The module's own forward, which takes tensors (or one vector of them) and returns a tensor, a
/// tuple, a pair or a vector of tensors. Another number of inputs ends the step with a sentence.
template <class Module>
[[nodiscard]] TorchForward torch_forward(std::shared_ptr<Module> module) {
  return on_torch::bound(std::move(module), &Module::forward);
}

/// A stage of one module, given as a shared_ptr or as the holder that TORCH_MODULE makes.
template <class Module>
[[nodiscard]] std::unique_ptr<TorchStage> make_torch_stage(std::shared_ptr<Module> module,
                                                           TorchStageSettings settings = {}) {
  TorchForward forward = torch_forward(module);
  return std::make_unique<TorchStage>(std::move(module), std::move(forward), std::move(settings));
}

template <class Holder>
requires requires(const Holder& holder) {
  holder.ptr();
}
[[nodiscard]] std::unique_ptr<TorchStage> make_torch_stage(const Holder& holder,
                                                           TorchStageSettings settings = {}) {
  return make_torch_stage(holder.ptr(), std::move(settings));
}

}  // namespace millrace
