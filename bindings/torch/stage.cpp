// The three passes over PyTorch's graph of one unit.
#include "millrace/torch/stage.hpp"

#include <ATen/ATen.h>
#include <algorithm>
#include <c10/util/Exception.h>
#include <cmath>
#include <numeric>
#include <torch/csrc/autograd/variable.h>
#include <utility>

#include "millrace/core/error.hpp"
#include "torch/exchange.hpp"
#include "torch/graph_leaves.hpp"
#include "torch/held_memory.hpp"
#include "torch/module_run.hpp"
#include "torch/split_backward.hpp"
#include "torch/threads.hpp"

namespace millrace {

namespace on_torch {

enum class Keeps : std::uint8_t { Nothing, Inputs, Graph, ParametersHalf };

/// Bytes that units of one shape keep.
struct KeptBytes {
  UnitSize size;  // as their first input's extents say it
  std::size_t inputs = 0;
  std::size_t graph = 0;
  std::size_t parameters_half = 0;
};

/// What a unit keeps between its passes.
struct UnitGraph {
  Keeps keeps = Keeps::Nothing;
  std::vector<at::Tensor> inputs;      // leaves of the graph
  std::vector<at::Tensor> targets;     // of the last stage, for a recompute
  torch::autograd::edge_list outputs;  // where its gradients enter; invalid for those without
  at::Tensor loss;                     // of the last stage: the sum
  SplitBackward split;
  std::size_t counted = 0;           // by the stash meter
  KeptBytes* bytes = nullptr;        // of its shape
  std::unique_ptr<HeldMemory> held;  // where they are not known yet
};

}  // namespace on_torch

namespace {

using on_torch::HeldMemory;
using on_torch::Keeps;
using on_torch::KeptBytes;
using on_torch::Outcome;
using on_torch::Roots;
using on_torch::UnitGraph;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::variable_list;
using torch::autograd::impl::gradient_edge;

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

/// Runs a pass with so many threads, and makes one line of what PyTorch throws.
template <class Pass>
auto on_threads(int count, const Pass& pass) {
  on_torch::use_threads(count);
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

void add(const PassContext& context, const TorchLossSum& loss) {
  *context.loss += {loss.sum.item<double>(), loss.weight, loss.correct, loss.judged};
}

std::size_t bytes_of(const std::vector<at::Tensor>& tensors) {
  std::size_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.defined() ? tensor.nbytes() : 0;
  return bytes;
}

/// Samples and positions, as the first input has them.
UnitSize size_of(const std::vector<at::Tensor>& inputs) {
  const auto first = std::ranges::find_if(inputs, &at::Tensor::defined);
  if (first == inputs.end() || first->dim() == 0) return {};
  return {.samples = first->size(0), .positions = first->dim() > 1 ? first->size(1) : 1};
}

/// What the unit holds of what its operations made, with its inputs.
std::size_t held_bytes(const on_torch::ModuleParameters& parameters,
                       const UnitGraph& unit,
                       const TensorList& given) {
  std::vector<const void*> before = parameters.memory();
  std::size_t bytes = 0;
  for (const at::Tensor& input : unit.inputs) {
    if (!input.defined()) continue;
    before.push_back(input.storage().data());
    bytes += input.nbytes();
  }
  std::vector<const void*> theirs;
  for (std::size_t i = 0; i < given.size(); ++i) theirs.push_back(given[i].data());
  return bytes + unit.held->bytes(before, theirs);
}

/// What units of one size keep as a share of those of another, where bytes grow with rows.
double share_of(const UnitSize& wanted, const UnitSize& measured) {
  const auto rows = [&](const UnitSize& size) {
    const bool counts = wanted.positions > 1;  // else the second extent is no sequence
    return static_cast<double>(size.samples) * static_cast<double>(counts ? size.positions : 1);
  };
  return rows(wanted) / rows(measured);
}

bool is_nearer(const UnitSize& one, const UnitSize& other, const UnitSize& wanted) {
  const auto distance = [&](const UnitSize& size) { return std::abs(share_of(wanted, size) - 1); };
  return one.samples > 0 && (other.samples == 0 || distance(one) < distance(other));
}

/// As one graph of the whole model adds them: the last use first.
at::Tensor sum_of_uses(variable_list& gradients, std::size_t first, std::size_t uses) {
  const at::NoGradGuard plain;
  at::Tensor sum;
  for (std::size_t i = first + uses; i-- > first;) {
    at::Tensor gradient = std::move(gradients[i]);
    if (gradient.defined()) sum = sum.defined() ? sum + gradient : gradient;
  }
  return sum;
}

}  // namespace

struct TorchStage::State {
  State(std::shared_ptr<torch::nn::Module> module,
        TorchForward forward,
        TorchStageSettings settings)
      : run(std::move(module), std::move(forward), std::move(settings)) {}

  UnitGraph& at(const PassContext& context, Keeps expected, const char* pass);
  TensorList run_with_graph(const PassContext& context, UnitGraph& unit, bool again);
  TensorList run_without(const PassContext& context,
                         std::vector<at::Tensor>& inputs,
                         const std::vector<at::Tensor>& targets);
  void find_bytes(UnitGraph& unit);
  void count(const PassContext& context, UnitGraph& unit, Keeps keeps, const TensorList& given);
  void release(const PassContext& context, UnitGraph& unit);
  [[nodiscard]] Roots roots_of(const PassContext& context,
                               UnitGraph& unit,
                               TensorList gradients) const;
  [[nodiscard]] std::vector<std::size_t> uses_of(std::size_t outputs, std::size_t gradients) const;
  void look_at(const PassContext& context, const UnitGraph& unit);
  [[nodiscard]] int threads() const { return run.settings().threads_per_rank; }

  on_torch::ModuleRun run;
  int slices = 1;
  std::vector<UnitGraph> units = std::vector<UnitGraph>(1);
  std::map<std::vector<std::int64_t>, KeptBytes> bytes_by_shape;
  std::optional<std::uint64_t> seen_step;  // whose first graph was looked at
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

/// Runs the unit's module under autograd and keeps where its backward begins. The outputs.
TensorList TorchStage::State::run_with_graph(const PassContext& context,
                                             UnitGraph& unit,
                                             bool again) {
  find_bytes(unit);
  Outcome outcome = [&] {
    const on_torch::Watching watching(unit.held.get());
    return run(context, unit.inputs, unit.targets, true, again);
  }();
  unit.loss = outcome.loss.sum;
  if (!unit.loss.defined()) unit.outputs = ends_at(outcome.outputs);
  look_at(context, unit);
  unit.targets.clear();
  if (unit.loss.defined() && !again) add(context, outcome.loss);
  TensorList given;
  if (!unit.loss.defined() && !again) given = on_torch::given(context, outcome.outputs);
  outcome = {};
  count(context, unit, Keeps::Graph, given);
  return given;
}

/// The first graph of a step must train nothing but what is registered.
void TorchStage::State::look_at(const PassContext& context, const UnitGraph& unit) {
  if (seen_step == context.step) return;
  edge_list roots = unit.outputs;
  if (unit.loss.defined() && unit.loss.requires_grad()) roots = {gradient_edge(unit.loss)};
  on_torch::require_registered_leaves(roots, ends_at(unit.inputs), run.parameters());
  seen_step = context.step;
}

/// Evaluation, or the first of two forwards.
TensorList TorchStage::State::run_without(const PassContext& context,
                                          std::vector<at::Tensor>& inputs,
                                          const std::vector<at::Tensor>& targets) {
  const Outcome outcome = run(context, inputs, targets, false, false);
  if (outcome.loss.sum.defined()) add(context, outcome.loss);
  if (outcome.loss.sum.defined() && context.training) return {};
  return on_torch::given(context, outcome.outputs);
}

/// Of the first unit of a shape the memory is watched until it is known what it keeps.
void TorchStage::State::find_bytes(UnitGraph& unit) {
  std::vector<std::int64_t> shape;
  for (const at::Tensor& input : unit.inputs) {
    shape.push_back(input.defined() ? input.dim() : -1);
    if (input.defined()) shape.insert(shape.end(), input.sizes().begin(), input.sizes().end());
  }
  unit.bytes = &bytes_by_shape[std::move(shape)];
  if (unit.bytes->graph != 0) return;
  unit.held = std::make_unique<HeldMemory>();
  unit.bytes->inputs = bytes_of(unit.inputs) + bytes_of(unit.targets);
  unit.bytes->size = size_of(unit.inputs);
}

/// Tells the meter what the unit keeps from now on.
void TorchStage::State::count(const PassContext& context,
                              UnitGraph& unit,
                              Keeps keeps,
                              const TensorList& given) {
  unit.keeps = keeps;
  std::size_t bytes = 0;
  if (keeps == Keeps::Inputs) {
    bytes = bytes_of(unit.inputs) + bytes_of(unit.targets);
  } else if (keeps != Keeps::Nothing) {
    std::size_t& known = keeps == Keeps::Graph ? unit.bytes->graph : unit.bytes->parameters_half;
    if (unit.held) known = held_bytes(run.parameters(), unit, given);
    bytes = known;
  }
  if (context.meter != nullptr) {
    context.meter->remove(unit.counted);
    context.meter->add(bytes);
  }
  unit.counted = bytes;
}

/// The unit's last pass is over.
void TorchStage::State::release(const PassContext& context, UnitGraph& unit) {
  count(context, unit, Keeps::Nothing, {});
  unit = {};
}

/// How many of the gradients belong to each output.
std::vector<std::size_t> TorchStage::State::uses_of(std::size_t outputs,
                                                    std::size_t gradients) const {
  std::vector<std::size_t> uses(outputs, 1);
  for (std::size_t i = 0; i < std::min(outputs, run.settings().output_uses.size()); ++i)
    uses[i] = static_cast<std::size_t>(run.settings().output_uses[i]);
  if (outputs == 1 && run.settings().output_uses.empty()) uses[0] = gradients;
  require(std::accumulate(uses.begin(), uses.end(), std::size_t{0}) == gradients, [&] {
    return "the stage has " + std::to_string(outputs) + " outputs and was given " +
           std::to_string(gradients) +
           " gradients; output_uses says how many inputs of later stages each output is";
  });
  return uses;
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
                       TorchStageSettings settings)
    : state_(std::make_unique<State>(std::move(module), std::move(forward), std::move(settings))) {}

TorchStage::~TorchStage() = default;

TensorList TorchStage::forward(const PassContext& context, TensorList inputs) {
  State& state = *state_;
  return on_threads(state.threads(), [&] {
    std::vector<at::Tensor> given = on_torch::taken(std::move(inputs));
    std::vector<at::Tensor> targets;
    if (state.run.settings().loss != nullptr && context.targets != nullptr)
      targets = on_torch::copied(*context.targets);
    if (!context.training) return state.run_without(context, given, targets);
    UnitGraph& unit = state.at(context, Keeps::Nothing, "forward");
    unit.inputs = std::move(given);
    unit.targets = std::move(targets);
    if (!context.recompute_later) return state.run_with_graph(context, unit, false);
    TensorList outputs = state.run_without(context, unit.inputs, unit.targets);
    state.count(context, unit, Keeps::Inputs, {});
    return outputs;
  });
}

void TorchStage::recompute(const PassContext& context) {
  on_threads(state_->threads(), [&] {
    UnitGraph& unit = state_->at(context, Keeps::Inputs, "recompute");
    (void)state_->run_with_graph(context, unit, true);
  });
}

TensorList TorchStage::backward(const PassContext& context, TensorList output_gradients) {
  State& state = *state_;
  return on_threads(state.threads(), [&] {
    UnitGraph& unit = state.at(context, Keeps::Graph, "backward");
    const edge_list inputs = ends_at(unit.inputs);
    edge_list ends = valid_of(inputs);
    const auto count = static_cast<std::ptrdiff_t>(ends.size());
    const edge_list& parameters = state.run.parameters().ends();
    ends.insert(ends.end(), parameters.begin(), parameters.end());
    const Roots roots = state.roots_of(context, unit, std::move(output_gradients));
    variable_list gradients = on_torch::run_backward(roots, ends, false);
    state.run.parameters().add({gradients.begin() + count, gradients.end()});
    gradients.resize(static_cast<std::size_t>(count));
    state.release(context, unit);
    return in_place(context, inputs, std::move(gradients));
  });
}

TensorList TorchStage::backward_input(const PassContext& context, TensorList output_gradients) {
  State& state = *state_;
  return on_threads(state.threads(), [&] {
    UnitGraph& unit = state.at(context, Keeps::Graph, "backward-input");
    const edge_list inputs = ends_at(unit.inputs);
    variable_list gradients = [&] {
      const on_torch::Watching watching(unit.held.get());
      return unit.split.input_gradients(state.roots_of(context, unit, std::move(output_gradients)),
                                        valid_of(inputs),
                                        state.run.parameters().ends());
    }();
    unit.inputs.clear();
    TensorList given = in_place(context, inputs, std::move(gradients));
    state.count(context, unit, Keeps::ParametersHalf, given);
    return given;
  });
}

void TorchStage::backward_weight(const PassContext& context) {
  State& state = *state_;
  on_threads(state.threads(), [&] {
    UnitGraph& unit = state.at(context, Keeps::ParametersHalf, "backward-weight");
    on_torch::ModuleParameters& parameters = state.run.parameters();
    parameters.add(unit.split.parameter_gradients(parameters.ends()));
    state.release(context, unit);
  });
}

std::vector<Parameter*> TorchStage::parameters() {
  return state_->run.parameters().all();
}

std::optional<double> TorchStage::loss_weight(const TensorList& targets) const {
  const TorchLossWeight& weight = state_->run.settings().loss_weight;
  if (weight == nullptr) return std::nullopt;
  return on_threads(state_->threads(), [&] { return weight(on_torch::copied(targets)); });
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

StashBytes TorchStage::stash_bytes(const UnitSize& size, bool recompute) const {
  const KeptBytes* nearest = nullptr;
  for (const auto& [shape, bytes] : state_->bytes_by_shape)
    if (nearest == nullptr || is_nearer(bytes.size, nearest->size, size)) nearest = &bytes;
  if (nearest == nullptr || nearest->size.samples == 0) return {};
  const auto scaled = [&](std::size_t bytes) {
    return static_cast<std::size_t>(
        std::llround(static_cast<double>(bytes) * share_of(size, nearest->size)));
  };
  const std::size_t graph = scaled(nearest->graph);
  const std::size_t half = scaled(nearest->parameters_half);
  return {.after_forward = recompute ? scaled(nearest->inputs) : graph,
          .after_recompute = recompute ? graph : 0,
          .input_peak = std::max(graph, half),
          .after_input = half};
}

void TorchStage::abandon_step() noexcept {
  for (UnitGraph& unit : state_->units) unit = {};
}

}  // namespace millrace
