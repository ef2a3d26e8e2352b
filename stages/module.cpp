// StageModule: runs layers up and down, and keeps the books of what each unit has stashed.
#include "millrace/stages/module.hpp"

#include <algorithm>
#include <utility>

#include "millrace/core/error.hpp"
#include "stages/flow.hpp"
#include "stages/kernels/blocked_signals.hpp"
#include "stages/kernels/precision.hpp"
#include "stages/layers/check.hpp"

namespace millrace {
namespace {

void count(const PassContext& context, std::size_t bytes) {
  if (context.meter != nullptr) context.meter->add(bytes);
}

/// Takes a counted tensor or list out of its place.
template <class Kept>
Kept uncount(const PassContext& context, Kept& kept) {
  if (context.meter != nullptr) context.meter->remove(kept.bytes());
  return std::move(kept);
}

/// Copies what does not lie on 64-byte boundaries to where it does.
TensorList aligned(const PassContext& context, TensorList tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i] && !is_aligned(tensors[i])) tensors[i] = copy_of(context, tensors[i]);
  return tensors;
}

void check_loss(const StageWiring& wiring, const Loss* loss) {
  require(loss == nullptr || (wiring.outputs.size() == 1 && wiring.output_uses.front() == 1),
          "a stage with a loss has one output, which the loss alone uses");
}

}  // namespace

StageModule::StageModule(std::vector<std::unique_ptr<Layer>> layers,
                         StageWiring wiring,
                         Settings settings)
    : layers_(std::move(layers)), settings_(std::move(settings)) {
  require(!layers_.empty(), "a stage needs at least one layer");
  check_loss(wiring, settings_.loss.get());
  flow_ = std::make_unique<Flow>(layers_, std::move(wiring), settings_.precision);
  recompute_in(std::vector<int>(layers_.size(), 0));
}

StageModule::~StageModule() = default;

void StageModule::recompute_in(std::vector<int> segment_of_layer) {
  require(segment_of_layer.size() == layers_.size(), [&] {
    return "recompute is said of " + std::to_string(segment_of_layer.size()) +
           " layers, the stage has " + std::to_string(layers_.size());
  });
  std::vector<Segment> segments;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const int segment = segment_of_layer[i];
    if (segment == kKept) continue;
    if (segment == static_cast<int>(segments.size())) segments.push_back({i, i, {}});
    require(segment + 1 == static_cast<int>(segments.size()) && segments.back().last == i,
            "recompute segments are consecutive layers, numbered upwards from 0");
    segments.back().last = i + 1;
  }
  for (Segment& segment : segments)
    segment.values = flow_->values_into(segment.first, segment.last);
  segment_of_ = std::move(segment_of_layer);
  segments_ = std::move(segments);
  reserve(std::max(1, static_cast<int>(units_.size()) / slices_), slices_);
}

void StageModule::reserve(int micro_batches, int slices) {
  require(micro_batches >= 1 && slices >= 1,
          "a stage must be reserved for at least 1 micro-batch of 1 slice");
  require(stashed_units() == 0, "a stage cannot be reserved again inside a step");
  slices_ = slices;
  for (const auto& layer : layers_) layer->cut_into(slices);
  const auto units = static_cast<std::size_t>(micro_batches) * static_cast<std::size_t>(slices);
  units_ = std::vector<UnitStash>(units);
  for (UnitStash& unit : units_) unit.given.resize(segments_.size());
  stashes_ = std::vector<Stash>(units * layers_.size());
  const auto joined = static_cast<std::size_t>(slices);
  for (std::size_t first = 0; first < stashes_.size(); first += joined)
    Stash::join(std::span(stashes_).subspan(first, joined));
  for (std::size_t i = 0; i < stashes_.size(); ++i)
    stashes_[i].hold_in(layers_[i / joined % layers_.size()]->precision());
}

Stash& StageModule::stash(std::size_t unit, std::size_t layer) {
  const auto slices = static_cast<std::size_t>(slices_);
  return stashes_[(unit / slices * layers_.size() + layer) * slices + unit % slices];
}

/// Where the unit's memory is.
std::size_t StageModule::place_of(const PassContext& context, const char* pass) const {
  const std::int64_t unit = std::int64_t{context.micro_batch.value} * slices_ + context.slice.value;
  if (unit < 0 || context.slice.value >= slices_ || unit >= std::ssize(units_))
    throw InvalidArgument(std::string(pass) + " of micro-batch " +
                          std::to_string(context.micro_batch.value) + ", slice " +
                          std::to_string(context.slice.value) + ": the stage is reserved for " +
                          std::to_string(units_.size()) + " units of " + std::to_string(slices_) +
                          " slices per micro-batch");
  return static_cast<std::size_t>(unit);
}

std::size_t StageModule::place_of(const PassContext& context, State expected, const char* pass) {
  const std::size_t unit = place_of(context, pass);
  if (units_[unit].state == expected) return unit;
  throw InvalidArgument(std::string(pass) + " of micro-batch " +
                        std::to_string(context.micro_batch.value) + ", slice " +
                        std::to_string(context.slice.value) + " comes out of turn: " +
                        (units_[unit].state == State::Empty ? "nothing is" : "something else is") +
                        " stashed for it");
}

bool StageModule::is_recomputed(const PassContext& context, std::size_t layer) const {
  return context.recompute_later && segment_of_[layer] != kKept;
}

void StageModule::run_layers(const PassContext& context, TensorList inputs, std::size_t unit) {
  PassContext uncounted = context;
  uncounted.meter = nullptr;
  flow_->begin(context, std::move(inputs));
  if (context.recompute_later) keep_given(context, units_[unit], 0, flow_->first_value(0));
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const bool again = is_recomputed(context, i);
    flow_->give(
        context,
        i,
        layers_[i]->forward(again ? uncounted : context, flow_->inputs_of(i), stash(unit, i)));
    if (again) stash(unit, i).keep_shared_only(context);
    if (context.recompute_later)
      keep_given(context, units_[unit], flow_->first_value(i), flow_->first_value(i + 1));
  }
}

/// Copies those of the values [from, to) that segments will be run on again.
void StageModule::keep_given(const PassContext& context,
                             UnitStash& unit,
                             std::size_t from,
                             std::size_t to) {
  for (std::size_t s = 0; s < segments_.size(); ++s)
    for (const std::size_t value : segments_[s].values) {
      if (value < from || value >= to) continue;
      unit.given[s].push_back(kept(context, copy_of(context, flow_->look(value))));
      count(context, unit.given[s][unit.given[s].size() - 1].bytes());
    }
}

/// Runs the last segment that is not rebuilt yet again.
void StageModule::rebuild(const PassContext& context, std::size_t place) {
  UnitStash& unit = units_[place];
  const std::size_t s = --unit.to_rebuild;
  PassContext again = context;
  again.recomputing = true;
  TensorList given = uncount(context, unit.given[s]);
  for (std::size_t i = 0; i < given.size(); ++i)
    flow_->put(again, segments_[s].values[i], std::move(given[i]));
  for (std::size_t i = segments_[s].first; i < segments_[s].last; ++i)
    flow_->give(again, i, layers_[i]->forward(again, flow_->inputs_of(i), stash(place, i)));
  flow_->drop_values();
}

/// As it is kept or sent: f32 in the stage's precision.
Tensor StageModule::kept(const PassContext& context, Tensor tensor) const {
  if (settings_.precision == DType::F32 || !tensor || tensor.dtype() != DType::F32) return tensor;
  return narrowed(context, tensor, settings_.precision);
}

TensorList StageModule::leaving(const PassContext& context, TensorList tensors) const {
  for (std::size_t i = 0; i < tensors.size(); ++i)
    tensors[i] = kept(context, std::move(tensors[i]));
  return tensors;
}

Tensor StageModule::add_loss(const PassContext& context, const Tensor& predictions) const {
  require(context.targets != nullptr && !context.targets->empty(),
          "the last stage needs targets for every unit");
  LossResult result = settings_.loss->measure(context, predictions, *context.targets);
  if (context.loss != nullptr) *context.loss += result.sum;
  return std::move(result.gradient);
}

/// Nothing stays but what later slices of the micro-batch read, and after the last one not that.
TensorList StageModule::evaluate(const PassContext& context, TensorList inputs) {
  const std::size_t unit = slices_ > 1 ? place_of(context, "forward") : 0;
  run_layers(context, std::move(inputs), unit);
  TensorList outputs = flow_->outputs();
  if (settings_.loss == nullptr) outputs = leaving(context, std::move(outputs));
  if (context.slice.value + 1 == slices_)
    for (std::size_t i = 0; i < layers_.size(); ++i)
      for (int slice = 0; slice < slices_; ++slice)
        stash(unit - static_cast<std::size_t>(slice), i).clear(context);
  if (settings_.loss != nullptr && context.targets != nullptr) add_loss(context, outputs[0]);
  return outputs;
}

TensorList StageModule::forward(const PassContext& given, TensorList inputs) {
  const BlockedPass pass(given);
  const PassContext& context = pass.context();
  inputs = aligned(context, std::move(inputs));
  if (!context.training) return evaluate(context, std::move(inputs));
  const std::size_t place = place_of(context, State::Empty, "forward");
  UnitStash& unit = units_[place];
  unit.to_rebuild = context.recompute_later ? segments_.size() : 0;
  run_layers(context, std::move(inputs), place);
  TensorList outputs = flow_->outputs();
  unit.rows = outputs[0].rows();
  unit.state = context.recompute_later ? State::InputKept : State::Forwarded;
  if (settings_.loss == nullptr) return leaving(context, std::move(outputs));
  unit.loss_gradient = kept(context, add_loss(context, outputs[0]));
  count(context, unit.loss_gradient.bytes());
  return {};
}

void StageModule::recompute(const PassContext& given) {
  const BlockedPass pass(given);
  const PassContext& context = pass.context();
  const std::size_t place = place_of(context, State::InputKept, "recompute");
  if (units_[place].to_rebuild > 0) rebuild(context, place);
  units_[place].state = State::Forwarded;
}

/// Gives the flow the gradients of what later stages use, or that of the loss.
void StageModule::take_gradients(const PassContext& context,
                                 std::size_t place,
                                 TensorList gradients) {
  UnitStash& unit = units_[place];
  if (settings_.loss != nullptr) {
    require(gradients.empty(), "the last stage makes its own gradient and takes none");
    return flow_->begin_backward(context, TensorList(uncount(context, unit.loss_gradient)));
  }
  if (gradients.size() != flow_->later_uses())
    throw InvalidArgument("the stage takes " + std::to_string(flow_->later_uses()) +
                          " output gradients, got " + std::to_string(gradients.size()));
  for (std::size_t i = 0; i < gradients.size(); ++i)
    if (gradients[i] && gradients[i].rows() != unit.rows)
      throw InvalidArgument("the output gradient must have a row for each of the output's " +
                            std::to_string(unit.rows) + ", got " +
                            std::to_string(gradients[i].rows()));
  flow_->begin_backward(context, aligned(context, std::move(gradients)));
}

TensorList StageModule::backward_input(const PassContext& given, TensorList output_gradients) {
  const BlockedPass pass(given);
  const PassContext& context = pass.context();
  const std::size_t place = place_of(context, State::Forwarded, "backward-input");
  take_gradients(context, place, std::move(output_gradients));
  for (std::size_t i = layers_.size(); i-- > 0;) {
    const std::size_t left = units_[place].to_rebuild;
    if (left > 0 && segment_of_[i] + 1 == static_cast<int>(left)) rebuild(context, place);
    flow_->give_gradients(context,
                          i,
                          layers_[i]->backward_input(context,
                                                     flow_->output_gradients(context, i),
                                                     stash(place, i),
                                                     flow_->wants_gradient(i)));
  }
  units_[place].state = State::WeightOwed;
  if (settings_.first) return {};
  return leaving(context, flow_->input_gradients(context));
}

void StageModule::backward_weight(const PassContext& given) {
  const BlockedPass pass(given);
  const PassContext& context = pass.context();
  const std::size_t place = place_of(context, State::WeightOwed, "backward-weight");
  for (std::size_t i = layers_.size(); i-- > 0;)
    layers_[i]->backward_weight(context, stash(place, i));
  units_[place].state = State::Empty;
}

TensorList StageModule::backward(const PassContext& context, TensorList output_gradients) {
  const BlockedPass pass(context);
  return StageBody::backward(pass.context(), std::move(output_gradients));
}

std::optional<double> StageModule::loss_weight(const TensorList& targets) const {
  if (settings_.loss == nullptr) return std::nullopt;
  require(!targets.empty(), "a mini-batch to learn from must have targets");
  return settings_.loss->weight(targets);
}

void StageModule::update_statistics() {
  for (const auto& layer : layers_) layer->update_statistics();
}

std::vector<Parameter*> StageModule::parameters() {
  std::vector<Parameter*> all;
  for (const auto& layer : layers_)
    for (Parameter* parameter : layer->parameters()) all.push_back(parameter);
  return all;
}

std::size_t StageModule::kept_bytes(TensorType type, const UnitSize& size) const {
  if (type.dtype == DType::F32) type.dtype = settings_.precision;
  return bytes_of(type, size);
}

std::size_t StageModule::given_bytes(const Segment& segment, const UnitSize& size) const {
  std::size_t bytes = 0;
  for (const std::size_t value : segment.values) bytes += kept_bytes(flow_->type_of(value), size);
  return bytes;
}

StashBytes StageModule::stash_bytes(const UnitSize& size, bool recompute) const {
  const std::size_t loss = settings_.loss == nullptr ? 0 : kept_bytes(flow_->output_type(0), size);
  std::vector<LayerBytes> of_layer;
  for (std::size_t i = 0; i < layers_.size(); ++i)
    of_layer.push_back(layers_[i]->bytes(flow_->types_for(i, size)));
  std::size_t to_rebuild = recompute ? segments_.size() : 0;

  StashBytes bytes;
  std::size_t held = loss;
  for (std::size_t i = 0; i < layers_.size(); ++i)
    held += recompute && segment_of_[i] != kKept ? of_layer[i].shared : of_layer[i].after_forward;
  for (std::size_t s = 0; s < to_rebuild; ++s) held += given_bytes(segments_[s], size);
  const auto rebuilt = [&] {
    const Segment& segment = segments_[--to_rebuild];
    held -= given_bytes(segment, size);
    for (std::size_t i = segment.first; i < segment.last; ++i)
      held += of_layer[i].after_forward - of_layer[i].shared;
    bytes.input_peak = std::max(bytes.input_peak, held);
  };

  bytes.after_forward = bytes.input_peak = held;
  if (to_rebuild > 0) rebuilt();
  bytes.after_recompute = held;
  held -= loss;
  for (std::size_t i = layers_.size(); i-- > 0;) {
    if (to_rebuild > 0 && segment_of_[i] + 1 == static_cast<int>(to_rebuild)) rebuilt();
    held = held - of_layer[i].after_forward + of_layer[i].after_input;
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
  flow_->drop();
  for (UnitStash& unit : units_) {
    unit.state = State::Empty;
    for (TensorList& given : unit.given) given.clear();
    unit.to_rebuild = 0;
    unit.loss_gradient = Tensor();
  }
  for (Stash& stash : stashes_) stash.drop();
}

std::string StageModule::describe() const {
  std::string text;
  for (const auto& layer : layers_) text += layer->describe() + "\n";
  if (settings_.loss != nullptr) text += settings_.loss->describe() + "\n";
  return text;
}

}  // namespace millrace
