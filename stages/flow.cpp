#include "stages/flow.hpp"

#include <set>

#include "millrace/core/error.hpp"
#include "millrace/stages/layer.hpp"
#include "stages/kernels/blocks.hpp"
#include "stages/kernels/precision.hpp"

namespace millrace {
namespace {

/// sum += term, element by element in their own type.
void add(const PassContext& context, Tensor& sum, const Tensor& term) {
  if (term.dtype() != sum.dtype() || term.dims() != sum.dims())
    throw InvalidArgument(std::string("gradients of one tensor must be alike, got ") +
                          name_of(sum.dtype()) + " " + to_string(sum.dims()) + " and " +
                          name_of(term.dtype()) + " " + to_string(term.dims()));
  require_float(sum.dtype(), "a sum of gradients");
  with_precision(sum.dtype(), [&]<class T>(T) {
    T* to = values<T>(sum);
    const T* from = values<T>(term);
    for_numbers(context, sum.elements(), [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) to[i] += from[i];
    });
  });
}

}  // namespace

StageModule::Flow::Flow(const std::vector<std::unique_ptr<Layer>>& layers,
                        StageWiring wiring,
                        DType precision)
    : wiring_(std::move(wiring)), precision_(precision) {
  require(wiring_.layer_inputs.size() == layers.size(),
          "the wiring is for " + std::to_string(wiring_.layer_inputs.size()) +
              " layers, the stage has " + std::to_string(layers.size()));
  require(wiring_.output_uses.size() == wiring_.outputs.size(),
          "the wiring must list the uses of every output");
  infer(layers);
  for (const StageWiring::Source& output : wiring_.outputs)
    require(exists(output), "an output of the stage is a tensor that nothing in it gives");
  number_uses();
  for (std::size_t i = 0; i < layers.size(); ++i)
    for (std::size_t v = first_value_[i]; v < first_value_[i + 1]; ++v)
      require(values_[v].uses > 0, [&] {
        return "output " + std::to_string(v - first_value_[i]) + " of \"" + layers[i]->describe() +
               "\" is not used by any layer";
      });
  tensors_ = std::vector<SharedTensor>(values_.size());
}

std::size_t StageModule::Flow::value_of(const StageWiring::Source& source) const {
  const auto index = static_cast<std::size_t>(source.index);
  if (source.layer == StageWiring::Source::kStageInput) return index;
  return first_value_[static_cast<std::size_t>(source.layer)] + index;
}

/// Whether an input of the stage, or a layer that was inferred already, gives it.
bool StageModule::Flow::exists(const StageWiring::Source& source) const {
  if (source.index < 0 || source.layer < StageWiring::Source::kStageInput) return false;
  // first_value_[i] ends what layer i - 1 gives, or the stage's inputs.
  const auto end = static_cast<std::size_t>(source.layer + 1);
  return end < first_value_.size() && value_of(source) < first_value_[end];
}

/// The types of all values, layer by layer.
void StageModule::Flow::infer(const std::vector<std::unique_ptr<Layer>>& layers) {
  for (const TensorType& type : wiring_.inputs) values_.push_back({.type = type});
  first_value_.push_back(values_.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    std::vector<TensorType> given;
    bool wanted = false;
    for (const StageWiring::Source& source : wiring_.layer_inputs[i]) {
      require(exists(source), [&] {
        return "\"" + layers[i]->describe() + "\" takes a tensor that nothing before it gives";
      });
      given.push_back(values_[value_of(source)].type);
      wanted = wanted || given.back().has_gradient;
    }
    wanted_.push_back(wanted);
    for (const TensorType& type : layers[i]->infer(given)) values_.push_back({.type = type});
    first_value_.push_back(values_.size());
  }
}

/// Layers ascend, so their uses are counted in the order in which gradients are added.
void StageModule::Flow::number_uses() {
  for (const auto& sources : wiring_.layer_inputs)
    for (const StageWiring::Source& source : sources) ++values_[value_of(source)].readers;
  for (std::size_t i = 0; i < values_.size(); ++i)
    values_[i].uses = static_cast<std::size_t>(values_[i].readers);
  for (std::size_t output = 0; output < wiring_.outputs.size(); ++output) {
    Value& value = values_[value_of(wiring_.outputs[output])];
    ++value.readers;
    value.uses += static_cast<std::size_t>(wiring_.output_uses[output]);
  }
  std::size_t uses = 0;
  for (Value& value : values_) uses = (value.first_use = uses) + value.uses;
  gradients_.resize(uses);

  std::vector<std::size_t> next(values_.size());
  for (std::size_t i = 0; i < values_.size(); ++i) next[i] = values_[i].first_use;
  for (const auto& sources : wiring_.layer_inputs) {
    layer_uses_.emplace_back();
    for (const StageWiring::Source& source : sources)
      layer_uses_.back().push_back(next[value_of(source)]++);
  }
  for (std::size_t output = 0; output < wiring_.outputs.size(); ++output)
    for (int use = 0; use < wiring_.output_uses[output]; ++use)
      later_uses_.push_back(next[value_of(wiring_.outputs[output])]++);
}

void StageModule::Flow::begin(const PassContext& context, TensorList inputs) {
  if (inputs.size() != wiring_.inputs.size())
    throw InvalidArgument("the stage takes " + std::to_string(wiring_.inputs.size()) +
                          (wiring_.inputs.size() == 1 ? " tensor" : " tensors") + ", got " +
                          std::to_string(inputs.size()));
  for (std::size_t i = 0; i < inputs.size(); ++i)
    tensors_[i].set(context, entering(context, std::move(inputs[i])), values_[i].readers);
}

/// In numbers of the precision, and in the dtype that layers compute in. What was given is not
/// written to.
Tensor StageModule::Flow::entering(const PassContext& context, Tensor tensor) const {
  if (tensor && is_narrow(tensor.dtype())) return widened(context, tensor);
  if (precision_ == DType::F32 || !tensor || tensor.dtype() != DType::F32) return tensor;
  Tensor rounded = copy_of(context, tensor);
  round(context, rounded);
  return rounded;
}

void StageModule::Flow::round(const PassContext& context, Tensor& tensor) const {
  if (precision_ == DType::F32 || !tensor || tensor.dtype() != DType::F32) return;
  const std::span<float> numbers = tensor.as<float>();
  for_numbers(context, tensor.elements(), [&](std::int64_t first, std::int64_t last) {
    round_to(
        precision_,
        numbers.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first)));
  });
}

TensorList StageModule::Flow::inputs_of(std::size_t layer) {
  TensorList inputs;
  for (const StageWiring::Source& source : wiring_.layer_inputs[layer])
    inputs.push_back(tensors_[value_of(source)].take());
  return inputs;
}

void StageModule::Flow::give(const PassContext& context, std::size_t layer, TensorList outputs) {
  const std::size_t first = first_value_[layer];
  if (outputs.size() != first_value_[layer + 1] - first)
    throw InvalidArgument("layer " + std::to_string(layer) + " of the stage gave " +
                          std::to_string(outputs.size()) + " tensors; it declares " +
                          std::to_string(first_value_[layer + 1] - first));
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    round(context, outputs[i]);
    tensors_[first + i].set(context, std::move(outputs[i]), values_[first + i].readers);
  }
}

TensorList StageModule::Flow::outputs() {
  TensorList outputs;
  for (const StageWiring::Source& source : wiring_.outputs)
    outputs.push_back(tensors_[value_of(source)].take());
  return outputs;
}

void StageModule::Flow::begin_backward(const PassContext& context, TensorList gradients) {
  for (std::size_t i = 0; i < later_uses_.size(); ++i)
    gradients_[later_uses_[i]] = entering(context, std::move(gradients[i]));
}

/// The sum over a value's uses, in their order, rounded once.
Tensor StageModule::Flow::gradient_of(const PassContext& context, std::size_t value) {
  Tensor sum;
  bool added = false;
  const std::size_t first = values_[value].first_use;
  for (std::size_t use = first; use < first + values_[value].uses; ++use) {
    Tensor term = std::move(gradients_[use]);
    if (!sum) {
      sum = std::move(term);
    } else if (term) {
      add(context, sum, term);
      added = true;
    }
  }
  if (added) round(context, sum);
  return sum;
}

TensorList StageModule::Flow::output_gradients(const PassContext& context, std::size_t layer) {
  TensorList gradients;
  for (std::size_t value = first_value_[layer]; value < first_value_[layer + 1]; ++value)
    gradients.push_back(gradient_of(context, value));
  return gradients;
}

void StageModule::Flow::give_gradients(const PassContext& context,
                                       std::size_t layer,
                                       TensorList gradients) {
  if (!wanted_[layer]) return;
  const auto& uses = layer_uses_[layer];
  if (gradients.size() != uses.size())
    throw InvalidArgument("layer " + std::to_string(layer) + " of the stage gave " +
                          std::to_string(gradients.size()) + " gradients for " +
                          std::to_string(uses.size()) + " inputs");
  for (std::size_t i = 0; i < uses.size(); ++i) {
    round(context, gradients[i]);
    gradients_[uses[i]] = std::move(gradients[i]);
  }
}

TensorList StageModule::Flow::input_gradients(const PassContext& context) {
  TensorList gradients;
  for (std::size_t value = 0; value < wiring_.inputs.size(); ++value)
    gradients.push_back(gradient_of(context, value));
  return gradients;
}

std::vector<std::size_t> StageModule::Flow::values_into(std::size_t first, std::size_t last) const {
  std::set<std::size_t> values;
  for (std::size_t layer = first; layer < last; ++layer)
    for (const StageWiring::Source& source : wiring_.layer_inputs[layer])
      if (const std::size_t value = value_of(source); value < first_value_[first])
        values.insert(value);
  return {values.begin(), values.end()};
}

void StageModule::Flow::put(const PassContext& context, std::size_t value, Tensor tensor) {
  tensors_[value].set(context, entering(context, std::move(tensor)), values_[value].readers);
}

void StageModule::Flow::drop_values() noexcept {
  for (SharedTensor& tensor : tensors_) tensor.drop();
}

void StageModule::Flow::drop() noexcept {
  drop_values();
  for (Tensor& gradient : gradients_) gradient = Tensor();
}

std::vector<TensorType> StageModule::Flow::types_for(std::size_t layer,
                                                     const UnitSize& size) const {
  std::vector<TensorType> types;
  for (const StageWiring::Source& source : wiring_.layer_inputs[layer])
    types.push_back(sized(values_[value_of(source)].type, size));
  return types;
}

StageWiring chain_wiring(const TensorType& input, std::size_t layers) {
  StageWiring wiring;
  wiring.inputs = {input};
  for (std::size_t i = 0; i < layers; ++i)
    wiring.layer_inputs.push_back({{.layer = static_cast<int>(i) - 1}});
  wiring.outputs = {{.layer = static_cast<int>(layers) - 1}};
  wiring.output_uses = {1};
  return wiring;
}

}  // namespace millrace
