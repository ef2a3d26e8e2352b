#include "stages/models/cut.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>

#include "millrace/core/error.hpp"
#include "millrace/stages/partition.hpp"

namespace millrace {
std::vector<LayerValue> inputs_of(const ModelSpec& model, int layer) {
  const LayerSpec& spec = model.layers[static_cast<std::size_t>(layer)];
  if (!spec.inputs.empty()) return spec.inputs;
  return {{.layer = layer == 0 ? LayerValue::kModelInput : layer - 1}};
}

LayerValue output_of(const ModelSpec& model) {
  return model.output.value_or(LayerValue{.layer = model.layer_count() - 1});
}

ModelCut::ModelCut(const ModelSpec& model, std::span<const int> boundaries)
    : model_(model), boundaries_(boundaries.begin(), boundaries.end()) {
  check_boundaries(boundaries, model.layer_count());
  types_ = infer_types(model);
  wirings_.resize(boundaries_.size() - 1);
  wirings_.front().inputs = model.inputs;
  find_outputs();
  for (int layer = 0; layer < model.layer_count(); ++layer) wire(layer);
  std::ranges::sort(edges_, {}, [](const CutEdge& edge) {
    return std::tuple(edge.from, edge.output, edge.to, edge.input);
  });
  for (const CutEdge& edge : edges_)
    ++wirings_[static_cast<std::size_t>(edge.from)]
          .output_uses[static_cast<std::size_t>(edge.output)];
  wirings_.back().output_uses = {1};
}

int ModelCut::stage_of(int layer) const {
  if (layer == LayerValue::kModelInput) return 0;
  return static_cast<int>(std::ranges::upper_bound(boundaries_, layer) - boundaries_.begin()) - 1;
}

const TensorType& ModelCut::type_of(const LayerValue& value) const {
  const auto index = static_cast<std::size_t>(value.index);
  return value.layer == LayerValue::kModelInput
             ? model_.inputs[index]
             : types_[static_cast<std::size_t>(value.layer)][index];
}

std::vector<TensorType> ModelCut::input_types(int layer) const {
  std::vector<TensorType> types;
  for (const LayerValue& value : inputs_of(model_, layer)) types.push_back(type_of(value));
  return types;
}

StageWiring::Source ModelCut::source_in(int stage, const LayerValue& value) const {
  if (value.layer == LayerValue::kModelInput)
    return {.layer = StageWiring::Source::kStageInput, .index = value.index};
  return {.layer = value.layer - boundaries_[static_cast<std::size_t>(stage)],
          .index = value.index};
}

/// The values of each stage that later stages use, in the order in which they come to be.
void ModelCut::find_outputs() {
  std::vector<std::set<LayerValue>> used(wirings_.size());
  for (int layer = 0; layer < model_.layer_count(); ++layer)
    for (const LayerValue& value : inputs_of(model_, layer))
      if (stage_of(value.layer) < stage_of(layer))
        used[static_cast<std::size_t>(stage_of(value.layer))].insert(value);
  const LayerValue read = output_of(model_);
  const int last = static_cast<int>(wirings_.size()) - 1;
  require(stage_of(read.layer) == last,
          "the loss reads layers." + std::to_string(read.layer) +
              " gives; that must be a layer of the last stage");
  used.back() = {read};
  for (int stage = 0; stage <= last; ++stage) {
    StageWiring& wiring = wirings_[static_cast<std::size_t>(stage)];
    for (const LayerValue& value : used[static_cast<std::size_t>(stage)])
      wiring.outputs.push_back(source_in(stage, value));
    wiring.output_uses.assign(wiring.outputs.size(), 0);
  }
}

int ModelCut::output_number(int stage, const LayerValue& value) const {
  const auto& outputs = wirings_[static_cast<std::size_t>(stage)].outputs;
  return static_cast<int>(std::ranges::find(outputs, source_in(stage, value)) - outputs.begin());
}

/// Where the layer's inputs come from: its own stage, or an edge for each from an earlier one.
void ModelCut::wire(int layer) {
  const int stage = stage_of(layer);
  StageWiring& wiring = wirings_[static_cast<std::size_t>(stage)];
  wiring.layer_inputs.emplace_back();
  for (const LayerValue& value : inputs_of(model_, layer)) {
    const int from = stage_of(value.layer);
    if (from == stage) {
      wiring.layer_inputs.back().push_back(source_in(stage, value));
      continue;
    }
    const int input = static_cast<int>(wiring.inputs.size());
    wiring.inputs.push_back(type_of(value));
    wiring.layer_inputs.back().push_back({.index = input});
    edges_.push_back({from, output_number(from, value), stage, input});
  }
}

bool ModelCut::is_chain() const {
  if (edges_.size() + 1 != wirings_.size()) return false;
  for (int stage = 0; const CutEdge& edge : edges_) {
    if (edge != CutEdge{stage, 0, stage + 1, 0}) return false;
    ++stage;
  }
  return true;
}

std::vector<CutEdge> cut_edges(const ModelSpec& model, std::span<const int> boundaries) {
  const ModelCut cut(model, boundaries);
  return cut.is_chain() ? std::vector<CutEdge>() : cut.edges();
}

std::vector<std::vector<TensorType>> stage_inputs(const ModelSpec& model,
                                                  std::span<const int> boundaries) {
  const ModelCut cut(model, boundaries);
  std::vector<std::vector<TensorType>> inputs;
  for (int stage = 0; stage + 1 < std::ssize(boundaries); ++stage) {
    inputs.push_back(cut.wiring(stage).inputs);
    for (TensorType& type : inputs.back())
      if (type.dtype == DType::F32) type.dtype = model.precision;
  }
  return inputs;
}

}  // namespace millrace
