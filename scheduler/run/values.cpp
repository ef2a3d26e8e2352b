#include "run/values.hpp"

#include <algorithm>

#include "millrace/core/error.hpp"
#include "run/gradients.hpp"

namespace millrace::run {

namespace {

TensorList list_of(std::vector<Tensor>& tensors) {
  TensorList list;
  for (Tensor& tensor : tensors) list.push_back(std::move(tensor));
  return list;
}

/// What came along a link.
TensorList take(ValueSlots& slots, std::uint32_t slot, std::size_t expected) {
  TensorList list = slots.take(slot);
  if (list.size() != expected)
    throw Error("a link brought " + std::to_string(list.size()) + " tensors, expected " +
                std::to_string(expected));
  return list;
}

}  // namespace

Wiring::Wiring(const StageGraph& graph, const SlotMap& map) : graph_(graph), map_(map) {
  if (graph.is_chain()) return;
  cargo_.resize(graph.links());
  takers_.resize(static_cast<std::size_t>(graph.stages()));
  for (int stage = 0; stage < graph.stages(); ++stage) {
    std::vector<int>& takers = takers_[static_cast<std::size_t>(stage)];
    graph.for_each_leaving(Stage{stage}, [&](const StageLink& link) {
      cargo_[link.index] = cargo_of(link);
      for (const int output : cargo_[link.index].outputs) {
        const auto count = static_cast<std::size_t>(output) + 1;
        takers.resize(std::max(takers.size(), count), 0);
        ++takers[count - 1];
      }
    });
    number_uses(Stage{stage});
  }
}

Wiring::Cargo Wiring::cargo_of(const StageLink& link) const {
  Cargo cargo;
  for (const StageEdge& edge : graph_.edges(link)) {
    const auto known = std::ranges::find(cargo.outputs, edge.output);
    cargo.tensor.push_back(static_cast<std::size_t>(known - cargo.outputs.begin()));
    if (known == cargo.outputs.end()) cargo.outputs.push_back(edge.output);
  }
  return cargo;
}

void Wiring::number_uses(Stage stage) {
  std::size_t use = 0;
  for (int output = 0; output < std::ssize(takers_[stage.index()]); ++output)
    graph_.for_each_leaving(stage, [&](const StageLink& link) {
      const auto edges = graph_.edges(link);
      auto& uses = cargo_[link.index].use;
      uses.resize(edges.size());
      for (std::size_t i = 0; i < edges.size(); ++i)
        if (edges[i].output == output) uses[i] = use++;
    });
}

TensorList Wiring::inputs(ValueSlots& slots,
                          Stage stage,
                          std::uint32_t unit,
                          TensorPool& pool) const {
  std::vector<Tensor> inputs;
  graph_.for_each_entering(stage, [&](const StageLink& link) {
    const auto edges = graph_.edges(link);
    const Cargo& cargo = cargo_[link.index];
    TensorList given = take(slots, map_.activation(link, unit), cargo.outputs.size());
    for (std::size_t i = 0; i < edges.size(); ++i) {
      const auto input = static_cast<std::size_t>(edges[i].input);
      if (inputs.size() <= input) inputs.resize(input + 1);
      Tensor& tensor = given[cargo.tensor[i]];
      const bool again = std::find(cargo.tensor.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                                   cargo.tensor.end(),
                                   cargo.tensor[i]) != cargo.tensor.end();
      inputs[input] = again && tensor ? copy_into(pool, tensor) : std::move(tensor);
    }
  });
  return list_of(inputs);
}

void Wiring::give_outputs(ValueSlots& slots,
                          Stage stage,
                          std::uint32_t unit,
                          TensorList outputs,
                          TensorPool& pool) const {
  std::vector<int> left = takers_[stage.index()];
  require(outputs.size() == left.size(), [&] {
    return "it gave " + std::to_string(outputs.size()) +
           (outputs.size() == 1 ? " tensor" : " tensors") + ", wanted " +
           std::to_string(left.size()) + ": its edges use outputs 0 to " +
           std::to_string(left.size() - 1);
  });
  graph_.for_each_leaving(stage, [&](const StageLink& link) {
    TensorList dealt;
    for (const int number : cargo_[link.index].outputs) {
      Tensor& output = outputs[static_cast<std::size_t>(number)];
      const bool last = --left[static_cast<std::size_t>(number)] == 0;
      dealt.push_back(last || !output ? std::move(output) : copy_into(pool, output));
    }
    slots.put(map_.activation(link, unit), std::move(dealt));
  });
}

TensorList Wiring::gradients(ValueSlots& slots, Stage stage, std::uint32_t unit) const {
  std::vector<Tensor> sums(takers_[stage.index()].size());
  graph_.for_each_leaving(stage, [&](const StageLink& link) {
    const auto edges = graph_.edges(link);
    TensorList given = take(slots, map_.gradient(link, unit), edges.size());
    for (std::size_t i = 0; i < edges.size(); ++i) {
      Tensor& sum = sums[static_cast<std::size_t>(edges[i].output)];
      if (!sum)
        sum = std::move(given[i]);
      else if (given[i])
        add_gradient(sum, given[i], stage);
    }
  });
  return list_of(sums);
}

TensorList Wiring::gradients_per_use(ValueSlots& slots, Stage stage, std::uint32_t unit) const {
  std::vector<Tensor> uses;
  graph_.for_each_leaving(stage, [&](const StageLink& link) {
    const Cargo& cargo = cargo_[link.index];
    TensorList given = take(slots, map_.gradient(link, unit), cargo.use.size());
    for (std::size_t i = 0; i < cargo.use.size(); ++i) {
      uses.resize(std::max(uses.size(), cargo.use[i] + 1));
      uses[cargo.use[i]] = std::move(given[i]);
    }
  });
  return list_of(uses);
}

void Wiring::give_gradients(ValueSlots& slots,
                            Stage stage,
                            std::uint32_t unit,
                            TensorList gradients) const {
  graph_.for_each_entering(stage, [&](const StageLink& link) {
    TensorList dealt;
    for (const StageEdge& edge : graph_.edges(link))
      dealt.push_back(std::move(gradients[static_cast<std::size_t>(edge.input)]));
    slots.put(map_.gradient(link, unit), std::move(dealt));
  });
}

SlotMap::SlotMap(const StageGraph& graph, const std::vector<bool>& touched, std::uint32_t units)
    : row_(touched.size(), 0), units_(units) {
  for (int stage = 0; stage < graph.stages(); ++stage)
    graph.for_each_leaving(Stage{stage}, [&](const StageLink& link) {
      if (!touched[link.index]) return;
      row_[link.index] = static_cast<std::uint32_t>(links_.size());
      links_.push_back(link);
    });
}

std::string SlotMap::name(std::size_t slot, int slices) const {
  const std::size_t activations = links_.size() * units_;
  const bool gradient = slot >= activations;
  const std::size_t at = gradient ? slot - activations : slot;
  const StageLink& link = links_[at / units_];
  const auto unit = static_cast<int>(at % units_);
  std::string text = gradient ? "the gradient for stage " : "the activation for stage ";
  text += std::to_string(gradient ? link.from.value : link.to.value) + ", micro-batch " +
          std::to_string(unit / slices);
  if (slices > 1) text += ", slice " + std::to_string(unit % slices);
  return text;
}

namespace {

[[noreturn]] void refuse(const char* what,
                         std::size_t given,
                         std::size_t wanted,
                         const char* because) {
  throw InvalidArgument(std::string(what) + " " + std::to_string(given) +
                        (given == 1 ? " tensor" : " tensors") + ", wanted " +
                        std::to_string(wanted) + ": " + because);
}

}  // namespace

void TensorCounts::forward_takes(const TensorList& inputs) {
  if (inputs_ == kUnknown) inputs_ = inputs.size();
  if (inputs.size() != inputs_)
    refuse("its inputs are", inputs.size(), inputs_, "as many as for the first unit of the step");
}

void TensorCounts::forward_gives(const TensorList& outputs) {
  if (outputs.empty()) refuse("it gave", 0, 1, "the next stage lives on its outputs");
  if (outputs_ == kUnknown) outputs_ = outputs.size();
  if (outputs.size() != outputs_)
    refuse("it gave", outputs.size(), outputs_, "as many as for the first unit of the step");
}

void TensorCounts::last_forward_gives(const TensorList& outputs) {
  if (!outputs.empty())
    refuse("it gave", outputs.size(), 0, "a stage with a loss gives that alone in training");
}

void TensorCounts::backward_takes(const TensorList& output_gradients) const {
  if (output_gradients.size() != outputs_)
    refuse("its output gradients are",
           output_gradients.size(),
           outputs_,
           "one for each output of its forward");
}

void TensorCounts::backward_gives(const TensorList& input_gradients) const {
  if (input_gradients.size() != inputs_)
    refuse("it gave", input_gradients.size(), inputs_, "a gradient for each input of its forward");
}

void TensorCounts::first_backward_gives(const TensorList& input_gradients) const {
  if (!input_gradients.empty()) backward_gives(input_gradients);
}

}  // namespace millrace::run
