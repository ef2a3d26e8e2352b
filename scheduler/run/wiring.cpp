// See wiring.hpp.
#include "run/wiring.hpp"

#include <algorithm>
#include <string>

#include "millrace/core/error.hpp"
#include "run/gradient_sum.hpp"

namespace millrace::run {

namespace {

TensorList list_of(std::vector<Tensor>& tensors) {
  TensorList list;
  for (Tensor& tensor : tensors) list.push_back(std::move(tensor));
  return list;
}

/// What came along a link, one tensor per edge.
TensorList take(ValueSlots& slots, std::uint32_t slot, std::size_t edges) {
  TensorList list = slots.take(slot);
  if (list.size() != edges)
    throw Error("a link brought " + std::to_string(list.size()) + " tensors for " +
                std::to_string(edges) + " edges");
  return list;
}

}  // namespace

Wiring::Wiring(const StageGraph& graph, const SlotMap& map) : graph_(graph), map_(map) {
  if (graph.is_chain()) return;
  for (int stage = 0; stage < graph.stages(); ++stage) uses_.push_back(uses(Stage{stage}));
}

std::vector<int> Wiring::uses(Stage stage) const {
  std::vector<int> uses;
  graph_.for_each_leaving(stage, [&](const StageLink& link) {
    for (const StageEdge& edge : graph_.edges(link)) {
      const auto output = static_cast<std::size_t>(edge.output);
      uses.resize(std::max(uses.size(), output + 1), 0);
      ++uses[output];
    }
  });
  return uses;
}

TensorList Wiring::inputs(ValueSlots& slots, Stage stage, std::uint32_t unit) const {
  std::vector<Tensor> inputs;
  graph_.for_each_entering(stage, [&](const StageLink& link) {
    const auto edges = graph_.edges(link);
    TensorList given = take(slots, map_.activation(link, unit), edges.size());
    for (std::size_t i = 0; i < edges.size(); ++i) {
      const auto input = static_cast<std::size_t>(edges[i].input);
      if (inputs.size() <= input) inputs.resize(input + 1);
      inputs[input] = std::move(given[i]);
    }
  });
  return list_of(inputs);
}

void Wiring::give_outputs(ValueSlots& slots,
                          Stage stage,
                          std::uint32_t unit,
                          TensorList outputs,
                          TensorPool& pool) const {
  std::vector<int> left = uses_[stage.index()];
  require(outputs.size() == left.size(), [&] {
    return "it gave " + std::to_string(outputs.size()) +
           (outputs.size() == 1 ? " tensor" : " tensors") + ", wanted " +
           std::to_string(left.size()) + ": its edges use outputs 0 to " +
           std::to_string(left.size() - 1);
  });
  graph_.for_each_leaving(stage, [&](const StageLink& link) {
    TensorList dealt;
    for (const StageEdge& edge : graph_.edges(link)) {
      Tensor& output = outputs[static_cast<std::size_t>(edge.output)];
      const bool last = --left[static_cast<std::size_t>(edge.output)] == 0;
      dealt.push_back(last || !output ? std::move(output) : copy_into(pool, output));
    }
    slots.put(map_.activation(link, unit), std::move(dealt));
  });
}

TensorList Wiring::gradients(ValueSlots& slots, Stage stage, std::uint32_t unit) const {
  std::vector<Tensor> sums(uses_[stage.index()].size());
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

}  // namespace millrace::run
