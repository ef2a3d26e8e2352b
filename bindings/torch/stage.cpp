// The three passes over PyTorch's graph of one unit.
#include "millrace/torch/stage.hpp"

#include <ATen/ATen.h>
#include <algorithm>
#include <c10/util/Exception.h>
#include <numeric>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>
#include <utility>

#include "millrace/core/error.hpp"
#include "torch/exchange.hpp"
#include "torch/module_parameters.hpp"
#include "torch/single_thread.hpp"
#include "torch/split_backward.hpp"

namespace millrace {

namespace on_torch {

enum class Keeps : std::uint8_t { Nothing, Graph, ParametersHalf };

/// What a unit keeps between its passes.
struct UnitGraph {
  Keeps keeps = Keeps::Nothing;
  std::vector<at::Tensor> inputs;      // leaves of the graph
  torch::autograd::edge_list outputs;  // where its gradients enter; invalid for those without
  at::Tensor loss;                     // of the last stage: the sum
  SplitBackward split;
};

}  // namespace on_torch

namespace {

using on_torch::Keeps;
using on_torch::Roots;
using on_torch::UnitGraph;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::variable_list;
using torch::autograd::impl::gradient_edge;

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

/// Runs a pass with one thread, and makes one line of what PyTorch throws.
template <class Pass>
auto on_one_thread(const Pass& pass) {
  on_torch::use_one_thread();
  try {
    return pass();
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& error) {
    throw Error(first_line(error.what_without_backtrace()));
  } catch (const std::exception& error) {
    const std::string text = error.what();
    if (text.find('\n') == std::string::npos) throw;
    throw Error(first_line(text));
  }
}

/// Where the gradients of inputs arrive.
edge_list ends_at(const std::vector<at::Tensor>& inputs) {
  edge_list ends;
  for (const at::Tensor& input : inputs)
    ends.push_back(input.defined() && input.requires_grad() ? gradient_edge(input) : Edge());
  return ends;
}

/// Only the valid ones, as the engine wants them, and gradients put back to where they belong.
edge_list valid_of(const edge_list& ends) {
  edge_list valid;
  std::ranges::copy_if(ends, std::back_inserter(valid), &Edge::is_valid);
  return valid;
}

TensorList in_place(const PassContext& context, const edge_list& ends, variable_list gradients) {
  TensorList list;
  std::size_t next = 0;
  for (const Edge& end : ends)
    list.push_back(end.is_valid() ? on_torch::given_away(context, std::move(gradients[next++]))
                                  : Tensor());
  return list;
}

}  // namespace

struct TorchStage::State {
  State(std::shared_ptr<torch::nn::Module> owner,
        TorchForward function,
        TorchStageSettings all_settings)
      : module(std::move(owner)),
        run(std::move(function)),
        settings(std::move(all_settings)),
        parameters(module.get(), settings.prefix) {}

  UnitGraph& at(const PassContext& context, Keeps expected, const char* pass);
  std::vector<at::Tensor> run_module(const PassContext& context,
                                     TensorList inputs,
                                     std::vector<at::Tensor>& given);
  TorchLossSum add_loss(const PassContext& context, const std::vector<at::Tensor>& outputs) const;
  [[nodiscard]] Roots roots_of(const PassContext& context,
                               UnitGraph& unit,
                               TensorList gradients) const;
  [[nodiscard]] at::Tensor sum_of_uses(variable_list& gradients,
                                       std::size_t first,
                                       std::size_t uses) const;
  [[nodiscard]] std::vector<std::size_t> uses_of(std::size_t outputs, std::size_t gradients) const;

  std::shared_ptr<torch::nn::Module> module;  // the user's, too
  TorchForward run;
  TorchStageSettings settings;
  on_torch::ModuleParameters parameters;
  int slices = 1;
  std::vector<UnitGraph> units = std::vector<UnitGraph>(1);
};

UnitGraph& TorchStage::State::at(const PassContext& context, Keeps expected, const char* pass) {
  const auto place =
      static_cast<std::size_t>(context.micro_batch.value * slices + context.slice.value);
  require(place < units.size() && context.slice.value < slices, [&] {
    return "micro-batch " + std::to_string(context.micro_batch.value) + ", slice " +
           std::to_string(context.slice.value) + ": the stage is reserved for " +
           std::to_string(units.size()) + " units of " + std::to_string(slices) +
           " slices per micro-batch";
  });
  require(units[place].keeps == expected, [&] {
    return std::string(pass) + " of micro-batch " + std::to_string(context.micro_batch.value) +
           ", slice " + std::to_string(context.slice.value) + " comes out of turn";
  });
  return units[place];
}

/// The outputs, and what they were made of.
std::vector<at::Tensor> TorchStage::State::run_module(const PassContext& context,
                                                      TensorList inputs,
                                                      std::vector<at::Tensor>& given) {
  parameters.require_same_memory();
  if (module != nullptr && module->is_training() != context.training)
    module->train(context.training);
  given = on_torch::taken(std::move(inputs));
  const at::AutoGradMode graph(context.training);
  if (context.training && !settings.first)
    for (at::Tensor& input : given)
      if (input.defined() && input.is_floating_point()) input.set_requires_grad(true);
  std::vector<at::Tensor> outputs = run(given);
  require(!outputs.empty(), "the module gave no tensor, its stage needs at least one");
  return outputs;
}

TorchLossSum TorchStage::State::add_loss(const PassContext& context,
                                         const std::vector<at::Tensor>& outputs) const {
  require(context.targets != nullptr, "the loss of a stage needs targets, the data gave none");
  TorchLossSum loss = settings.loss(outputs, on_torch::copied(*context.targets));
  require(loss.sum.defined() && loss.sum.numel() == 1, "a loss must give its sum as one number");
  *context.loss += {loss.sum.item<double>(), loss.weight, loss.correct, loss.judged};
  return loss;
}

/// How many of the gradients belong to each output.
std::vector<std::size_t> TorchStage::State::uses_of(std::size_t outputs,
                                                    std::size_t gradients) const {
  std::vector<std::size_t> uses(outputs, 1);
  for (std::size_t i = 0; i < std::min(outputs, settings.output_uses.size()); ++i)
    uses[i] = static_cast<std::size_t>(settings.output_uses[i]);
  if (outputs == 1 && settings.output_uses.empty()) uses[0] = gradients;
  require(std::accumulate(uses.begin(), uses.end(), std::size_t{0}) == gradients, [&] {
    return "the stage has " + std::to_string(outputs) + " outputs and was given " +
           std::to_string(gradients) +
           " gradients; output_uses says how many inputs of later stages each output is";
  });
  return uses;
}

/// As one graph of the whole model adds them: the last use first.
at::Tensor TorchStage::State::sum_of_uses(variable_list& gradients,
                                          std::size_t first,
                                          std::size_t uses) const {
  const at::NoGradGuard plain;
  at::Tensor sum;
  for (std::size_t i = first + uses; i-- > first;) {
    at::Tensor gradient = std::move(gradients[i]);
    if (gradient.defined()) sum = sum.defined() ? sum + gradient : gradient;
  }
  return sum;
}

Roots TorchStage::State::roots_of(const PassContext& context,
                                  UnitGraph& unit,
                                  TensorList gradients) const {
  Roots roots;
  if (unit.loss.defined()) {
    if (unit.loss.requires_grad())
      roots.add(gradient_edge(unit.loss), at::full_like(unit.loss, context.loss_scale));
    unit.loss.reset();
    return roots;
  }
  variable_list all = on_torch::taken(std::move(gradients));
  const std::vector<std::size_t> uses = uses_of(unit.outputs.size(), all.size());
  std::size_t first = 0;
  for (std::size_t i = 0; i < uses.size(); first += uses[i++]) {
    at::Tensor gradient = sum_of_uses(all, first, uses[i]);
    if (gradient.defined() && unit.outputs[i].is_valid())
      roots.add(std::move(unit.outputs[i]), std::move(gradient));
  }
  unit.outputs.clear();
  return roots;
}

TorchStage::TorchStage(std::shared_ptr<torch::nn::Module> module,
                       TorchForward forward,
                       TorchStageSettings settings) {
  require(forward != nullptr, "a stage needs a function for its forward");
  state_ = std::make_unique<State>(std::move(module), std::move(forward), std::move(settings));
}

TorchStage::~TorchStage() = default;

TensorList TorchStage::forward(const PassContext& context, TensorList inputs) {
  return on_one_thread([&] {
    State& state = *state_;
    std::vector<at::Tensor> given;
    const std::vector<at::Tensor> outputs = state.run_module(context, std::move(inputs), given);
    const at::AutoGradMode graph(context.training);
    const bool has_loss = state.settings.loss != nullptr;
    at::Tensor loss;
    if (has_loss && (context.training || context.targets != nullptr))
      loss = state.add_loss(context, outputs).sum;
    TensorList result;
    if (!has_loss || !context.training)
      for (const at::Tensor& output : outputs)
        result.push_back(on_torch::given(context, output, "an output of the stage"));
    if (!context.training) return result;
    UnitGraph& unit = state.at(context, Keeps::Nothing, "forward");
    unit.keeps = Keeps::Graph;
    unit.inputs = std::move(given);
    unit.loss = std::move(loss);
    if (!has_loss) unit.outputs = ends_at(outputs);
    return result;
  });
}

TensorList TorchStage::backward(const PassContext& context, TensorList output_gradients) {
  return on_one_thread([&] {
    State& state = *state_;
    UnitGraph& unit = state.at(context, Keeps::Graph, "backward");
    const edge_list inputs = ends_at(unit.inputs);
    edge_list ends = valid_of(inputs);
    const auto count = static_cast<std::ptrdiff_t>(ends.size());
    ends.insert(ends.end(), state.parameters.ends().begin(), state.parameters.ends().end());
    const Roots roots = state.roots_of(context, unit, std::move(output_gradients));
    variable_list gradients = on_torch::run_backward(roots, ends, false);
    state.parameters.add({gradients.begin() + count, gradients.end()});
    gradients.resize(static_cast<std::size_t>(count));
    unit = {};
    return in_place(context, inputs, std::move(gradients));
  });
}

TensorList TorchStage::backward_input(const PassContext& context, TensorList output_gradients) {
  return on_one_thread([&] {
    State& state = *state_;
    UnitGraph& unit = state.at(context, Keeps::Graph, "backward-input");
    const edge_list inputs = ends_at(unit.inputs);
    variable_list gradients =
        unit.split.input_gradients(state.roots_of(context, unit, std::move(output_gradients)),
                                   valid_of(inputs),
                                   state.parameters.ends());
    unit.inputs.clear();
    unit.keeps = Keeps::ParametersHalf;
    return in_place(context, inputs, std::move(gradients));
  });
}

void TorchStage::backward_weight(const PassContext& context) {
  on_one_thread([&] {
    State& state = *state_;
    UnitGraph& unit = state.at(context, Keeps::ParametersHalf, "backward-weight");
    state.parameters.add(unit.split.parameter_gradients(state.parameters.ends()));
    unit = {};
  });
}

std::vector<Parameter*> TorchStage::parameters() {
  return state_->parameters.all();
}

void TorchStage::reserve(int micro_batches, int slices) {
  require(micro_batches >= 1 && slices >= 1,
          "a stage must be reserved for at least 1 micro-batch of 1 slice");
  state_->slices = slices;
  state_->units = std::vector<UnitGraph>(static_cast<std::size_t>(micro_batches) *
                                         static_cast<std::size_t>(slices));
}

std::size_t TorchStage::stashed_units() const {
  return static_cast<std::size_t>(std::ranges::count_if(
      state_->units, [](const UnitGraph& unit) { return unit.keeps != Keeps::Nothing; }));
}

void TorchStage::abandon_step() noexcept {
  for (UnitGraph& unit : state_->units) unit = {};
}

}  // namespace millrace
