// Building the layers and stages of a model.
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/stages/models.hpp"
#include "millrace/stages/partition.hpp"
#include "stages/models/cut.hpp"

namespace millrace {
namespace {

LayerPlace place_of(const ModelSpec& model, int layer) {
  const bool keeps_f32 = model.layers[static_cast<std::size_t>(layer)].keep_f32;
  return {.number = static_cast<std::uint32_t>(layer),
          .dtype = model.dtype,
          .precision = keeps_f32 ? DType::F32 : model.precision};
}

std::string name_of(const LayerValue& value) {
  const std::string index = std::to_string(value.index);
  return value.layer == LayerValue::kModelInput
             ? "input " + index + " of the model"
             : "output " + index + " of layers." + std::to_string(value.layer);
}

void check_precision(const ModelSpec& model) {
  if (model.precision == DType::F32) return;
  require(is_narrow(model.precision), [&] {
    return std::string("the precision of a model is f32, bf16 or f16, not ") +
           millrace::name_of(model.precision);
  });
  require(model.dtype == DType::F32, [&] {
    return std::string("a model of ") + millrace::name_of(model.precision) +
           " computes in f32, not in " + millrace::name_of(model.dtype);
  });
}

/// Inferred so far, looked up.
const TensorType& type_of(const ModelSpec& model,
                          const std::vector<std::vector<TensorType>>& types,
                          const LayerValue& value,
                          const std::string& who) {
  const bool of_model = value.layer == LayerValue::kModelInput;
  require(of_model || (value.layer >= 0 && value.layer < std::ssize(types)),
          [&] { return who + " takes " + name_of(value) + ", which does not lie before it"; });
  const auto& from = of_model ? model.inputs : types[static_cast<std::size_t>(value.layer)];
  require(value.index >= 0 && value.index < std::ssize(from), [&] {
    return who + " takes " + name_of(value) + "; there are " + std::to_string(from.size());
  });
  return from[static_cast<std::size_t>(value.index)];
}

}  // namespace

std::vector<std::vector<TensorType>> infer_types(const ModelSpec& model) {
  require(!model.layers.empty(), "a model needs at least 1 layer");
  check_precision(model);
  for (const TensorType& input : model.inputs)
    require(!input.has_gradient, "an input of a model has no gradient");
  std::vector<std::vector<TensorType>> types;
  for (int layer = 0; layer < model.layer_count(); ++layer) {
    const std::string who = "layers." + std::to_string(layer);
    std::vector<TensorType> given;
    for (const LayerValue& value : inputs_of(model, layer))
      given.push_back(type_of(model, types, value, who));
    const auto& spec = model.layers[static_cast<std::size_t>(layer)];
    types.push_back(build_layer(spec, given, place_of(model, layer), model.kinds)->infer(given));
  }
  static_cast<void>(type_of(model, types, output_of(model), "the loss"));
  return types;
}

std::int64_t ModelSpec::input_columns() const {
  require(!inputs.empty(), "the model has no input");
  return inputs.front().columns();
}

std::int64_t ModelSpec::output_columns() const {
  const LayerValue read = output_of(*this);
  return infer_types(
             *this)[static_cast<std::size_t>(read.layer)][static_cast<std::size_t>(read.index)]
      .columns();
}

std::unique_ptr<Loss> build_loss(LossKind kind) {
  if (kind == LossKind::MeanSquaredError) return std::make_unique<MeanSquaredError>();
  return std::make_unique<SoftmaxCrossEntropy>();
}

std::unique_ptr<StageModule> stage_without_parameters(const ModelSpec& model,
                                                      std::span<const int> boundaries,
                                                      int stage) {
  const ModelCut cut(model, boundaries);
  const int stages = static_cast<int>(boundaries.size()) - 1;
  require(stage >= 0 && stage < stages,
          "stage " + std::to_string(stage) + " of " + std::to_string(stages) + " does not exist");
  const auto first = static_cast<std::size_t>(stage);
  std::vector<std::unique_ptr<Layer>> layers;
  for (int i = boundaries[first]; i < boundaries[first + 1]; ++i) {
    const auto& spec = model.layers[static_cast<std::size_t>(i)];
    layers.push_back(build_layer(spec, cut.input_types(i), place_of(model, i), model.kinds));
  }
  return std::make_unique<StageModule>(
      std::move(layers),
      cut.wiring(stage),
      StageModule::Settings{.first = stage == 0,
                            .loss = stage + 1 == stages ? build_loss(model.loss) : nullptr,
                            .precision = model.precision});
}

std::vector<std::string> parameter_names(const ModelSpec& model) {
  const auto whole = stage_without_parameters(model, std::vector<int>{0, model.layer_count()}, 0);
  std::vector<std::string> names;
  for (const Parameter* parameter : whole->parameters()) names.push_back(parameter->name);
  return names;
}

std::unique_ptr<StageModule> build_stage(const ModelSpec& model,
                                         std::span<const int> boundaries,
                                         int stage,
                                         std::uint64_t seed) {
  auto module = stage_without_parameters(model, boundaries, stage);
  for (std::size_t i = 0; i < module->layer_count(); ++i) module->layer(i).initialize(seed);
  return module;
}

std::vector<std::unique_ptr<StageModule>> build_stages(const ModelSpec& model,
                                                       std::span<const int> boundaries,
                                                       std::uint64_t seed) {
  check_boundaries(boundaries, model.layer_count());
  std::vector<std::unique_ptr<StageModule>> stages;
  for (int s = 0; s + 1 < static_cast<int>(boundaries.size()); ++s)
    stages.push_back(build_stage(model, boundaries, s, seed));
  return stages;
}

}  // namespace millrace
