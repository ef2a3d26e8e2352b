// StageModule: runs layers up and down, and keeps the books of what each unit has stashed.
#include "millrace/stages/module.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "millrace/core/error.hpp"
#include "stages/check.hpp"

namespace millrace {
namespace {

void check_neighbours(const Layer& before, const Layer& after) {
  require(before.output_columns() == after.input_columns() && before.dtype() == after.dtype(),
          "layers do not fit: \"" + before.describe() + "\" gives " + name_of(before.dtype()) +
              " rows of " + std::to_string(before.output_columns()) + ", \"" + after.describe() +
              "\" takes " + name_of(after.dtype()) + " rows of " +
              std::to_string(after.input_columns()));
}

Tensor copy_of(const PassContext& context, const Tensor& tensor) {
  Tensor copy = context.make(tensor.dtype(), tensor.dims());
  if (tensor.bytes() != 0) std::memcpy(copy.data(), tensor.data(), tensor.bytes());
  return copy;
}

void count(const PassContext& context, const Tensor& kept) {
  if (context.meter != nullptr) context.meter->add(kept.bytes());
}

/// Takes a counted tensor out of its place.
Tensor uncount(const PassContext& context, Tensor& kept) {
  if (context.meter != nullptr) context.meter->remove(kept.bytes());
  return std::move(kept);
}

Tensor only(TensorList list, const char* what) {
  if (list.size() == 1) return std::move(list[0]);
  throw InvalidArgument(std::string("a stage of layers takes one ") + what + " tensor, got " +
                        std::to_string(list.size()));
}

}  // namespace

StageModule::StageModule(std::vector<std::unique_ptr<Layer>> layers, Settings settings)
    : layers_(std::move(layers)), settings_(std::move(settings)) {
  require(!layers_.empty(), "a stage needs at least one layer");
  for (std::size_t i = 1; i < layers_.size(); ++i) check_neighbours(*layers_[i - 1], *layers_[i]);
  reserve(1, 1);
}

void StageModule::reserve(int micro_batches, int slices) {
  require(micro_batches >= 1 && slices >= 1,
          "a stage must be reserved for at least 1 micro-batch of 1 slice");
  require(stashed_units() == 0, "a stage cannot be reserved anew inside a step");
  slices_ = slices;
  units_ = std::vector<UnitStash>(static_cast<std::size_t>(micro_batches) *
                                  static_cast<std::size_t>(slices));
  for (UnitStash& unit : units_) unit.layers = std::vector<Stash>(layers_.size());
}

StageModule::UnitStash& StageModule::unit_of(const PassContext& context,
                                             State expected,
                                             const char* pass) {
  const std::int64_t index =
      std::int64_t{context.micro_batch.value} * slices_ + context.slice.value;
  const auto name = [&] {
    return std::string(pass) + " of micro-batch " + std::to_string(context.micro_batch.value) +
           ", slice " + std::to_string(context.slice.value);
  };
  if (index < 0 || context.slice.value >= slices_ || index >= std::ssize(units_))
    throw InvalidArgument(name() + ": the stage is reserved for " + std::to_string(units_.size()) +
                          " units of " + std::to_string(slices_) + " slices per micro-batch");
  UnitStash& unit = units_[static_cast<std::size_t>(index)];
  if (unit.state != expected)
    throw InvalidArgument(name() + " comes out of turn: " +
                          (unit.state == State::Empty ? "nothing is" : "something else is") +
                          " stashed for it");
  return unit;
}

Tensor StageModule::aligned(const PassContext& context, Tensor tensor) {
  if (!tensor || detail::is_aligned(tensor)) return tensor;
  return copy_of(context, tensor);
}

Tensor StageModule::run_layers(const PassContext& context, Tensor tensor, UnitStash& unit) {
  for (std::size_t i = 0; i < layers_.size(); ++i)
    tensor = layers_[i]->forward(context, std::move(tensor), unit.layers[i]);
  return tensor;
}

Tensor StageModule::add_loss(const PassContext& context, const Tensor& predictions) const {
  require(context.targets != nullptr && context.targets->size() == 1,
          "the last stage needs one tensor of targets per unit");
  LossResult result = settings_.loss->measure(context, predictions, (*context.targets)[0]);
  if (context.loss != nullptr) *context.loss += result.sum;
  return std::move(result.gradient);
}

TensorList StageModule::forward(const PassContext& context, TensorList inputs) {
  Tensor input = aligned(context, only(std::move(inputs), "input"));
  if (!context.training) {
    UnitStash nothing;
    nothing.layers = std::vector<Stash>(layers_.size());
    Tensor output = run_layers(context, std::move(input), nothing);
    if (settings_.loss != nullptr && context.targets != nullptr) add_loss(context, output);
    return TensorList(std::move(output));
  }
  UnitStash& unit = unit_of(context, State::Empty, "forward");
  PassContext layers_context = context;
  if (context.recompute_later) {
    unit.input = copy_of(context, input);
    count(context, unit.input);
    layers_context.meter = nullptr;
  }
  Tensor output = run_layers(layers_context, std::move(input), unit);
  if (context.recompute_later)
    for (Stash& stash : unit.layers) stash.drop();
  unit.rows = output.rows();
  unit.state = context.recompute_later ? State::InputKept : State::Forwarded;
  if (settings_.loss == nullptr) return TensorList(std::move(output));
  unit.loss_gradient = add_loss(context, output);
  count(context, unit.loss_gradient);
  return {};
}

void StageModule::recompute(const PassContext& context) {
  UnitStash& unit = unit_of(context, State::InputKept, "recompute");
  run_layers(context, uncount(context, unit.input), unit);
  unit.state = State::Forwarded;
}

Tensor StageModule::first_gradient(const PassContext& context,
                                   UnitStash& unit,
                                   TensorList gradients) const {
  if (settings_.loss == nullptr) {
    Tensor gradient = aligned(context, only(std::move(gradients), "output gradient"));
    if (gradient && gradient.rows() != unit.rows)
      throw InvalidArgument("the output gradient must have a row for each of the output's " +
                            std::to_string(unit.rows) + ", got " + std::to_string(gradient.rows()));
    return gradient;
  }
  require(gradients.empty(), "the last stage makes its own gradient and takes none");
  return uncount(context, unit.loss_gradient);
}

TensorList StageModule::backward_input(const PassContext& context, TensorList output_gradients) {
  UnitStash& unit = unit_of(context, State::Forwarded, "backward-input");
  Tensor gradient = first_gradient(context, unit, std::move(output_gradients));
  for (std::size_t i = layers_.size(); i-- > 0;) {
    const bool wanted = i > 0 || !settings_.first;
    gradient = layers_[i]->backward_input(context, std::move(gradient), unit.layers[i], wanted);
  }
  unit.state = State::WeightOwed;
  return settings_.first ? TensorList() : TensorList(std::move(gradient));
}

void StageModule::backward_weight(const PassContext& context) {
  UnitStash& unit = unit_of(context, State::WeightOwed, "backward-weight");
  for (std::size_t i = layers_.size(); i-- > 0;)
    layers_[i]->backward_weight(context, unit.layers[i]);
  unit.state = State::Empty;
}

std::vector<Parameter*> StageModule::parameters() {
  std::vector<Parameter*> all;
  for (const auto& layer : layers_)
    for (Parameter* parameter : layer->parameters()) all.push_back(parameter);
  return all;
}

StashBytes StageModule::stash_bytes(std::int64_t rows, bool recompute) const {
  const auto tensor_bytes = [&](const Layer& layer, std::int64_t columns) {
    return size_of(layer.dtype()) * static_cast<std::size_t>(rows * columns);
  };
  const Layer& last = *layers_.back();
  const std::size_t loss =
      settings_.loss == nullptr ? 0 : tensor_bytes(last, last.output_columns());
  const std::size_t kept_input = tensor_bytes(*layers_.front(), layers_.front()->input_columns());
  std::size_t held = loss;
  for (const auto& layer : layers_) held += layer->bytes_after_forward(rows);

  StashBytes bytes;
  bytes.after_forward = recompute ? kept_input + loss : held;
  bytes.input_peak = std::max(held, bytes.after_forward);
  held -= loss;
  for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) {
    held = held - (*layer)->bytes_after_forward(rows) + (*layer)->bytes_after_input(rows);
    bytes.input_peak = std::max(bytes.input_peak, held);
  }
  bytes.after_input = held;
  return bytes;
}

std::size_t StageModule::stashed_units() const {
  return static_cast<std::size_t>(std::ranges::count_if(
      units_, [](const UnitStash& unit) { return unit.state != State::Empty; }));
}

void StageModule::abandon_step() noexcept {
  for (UnitStash& unit : units_) {
    unit.state = State::Empty;
    unit.input = Tensor();
    unit.loss_gradient = Tensor();
    for (Stash& stash : unit.layers) stash.drop();
  }
}

std::string StageModule::describe() const {
  std::string text;
  for (const auto& layer : layers_) text += layer->describe() + "\n";
  if (settings_.loss != nullptr) text += settings_.loss->describe() + "\n";
  return text;
}

}  // namespace millrace
