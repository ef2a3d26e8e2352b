// The store by name: parts of parameters are read and written, groups of them set, counters kept.
#include "millrace/training/state.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "millrace/core/error.hpp"
#include "millrace/stages/layer.hpp"
#include "training/name_pattern.hpp"
#include "training/optimizer_shards.hpp"
#include "training/state_contents.hpp"

namespace millrace {
namespace {

std::string described(const Tensor& tensor) {
  return std::string(name_of(tensor.dtype())) + " " + to_string(tensor.dims());
}

/// Copies take micro-batches side by side.
void refuse_order(const HostedStage& hosted) {
  for (const Parameter* parameter : hosted.body->parameters())
    require(parameter->role != ParameterRole::StatisticInOrder, [&] {
      return "'" + parameter->name + "' takes micro-batch after micro-batch, so stage " +
             std::to_string(hosted.stage.value) +
             " can have no copies; use deferred statistics, or a schedule without copies";
    });
}

/// Of the values that a parameter is given, whichever of them have a master here.
void round_whole(StateEntry& entry, const std::byte* values) {
  if (!entry.master) return;
  Tensor& own = entry.parameter->value;
  std::memmove(own.data(), values, own.bytes());
  round_to(entry.parameter->precision, own.as<float>());
}

/// The gradient, and values without a master, are always whole.
bool is_share_of(const StateEntry& entry, std::string_view part) {
  if (part == kGradientPart || !entry.is_spread) return false;
  return part != kValuePart || entry.master;
}

}  // namespace

void StateEntry::round_value() {
  if (!master) return;
  const std::span<float> rounded = parameter->value.as<float>().subspan(first, last - first);
  std::ranges::copy(master.as<float>(), rounded.begin());
  round_to(parameter->precision, rounded);
}

std::size_t TrainingState::Contents::number(std::string_view name) const {
  const auto found = std::ranges::lower_bound(names, name);
  require(found != names.end() && *found == name, [&] {
    return "no parameter is called '" + std::string(name) + "'" + nearest_to(name, names);
  });
  return static_cast<std::size_t>(found - names.begin());
}

StateEntry& TrainingState::Contents::hosted(std::string_view name) const {
  const std::size_t wanted = number(name);
  require(!copies[wanted].empty(), [&] {
    return "parameter '" + std::string(name) + "' lives in another process, that of rank " +
           std::to_string(member[wanted]) + "; hosts() tells which live here";
  });
  return *copies[wanted].front();
}

Tensor& TrainingState::Contents::part_of(StateEntry& entry, std::string_view part) const {
  if (part == kValuePart) return entry.value();
  if (part == kGradientPart) return entry.parameter->gradient;
  const std::span<const std::string> known(parts.data(), kPartsOfStatistics + entry.slots.size());
  const auto slot = std::find(known.begin() + kPartsOfStatistics, known.end(), part);
  require(slot != known.end(), [&] {
    return "parameters have no part '" + std::string(part) + "'" + nearest_to(part, known);
  });
  return entry.slots[static_cast<std::size_t>(slot - known.begin()) - kPartsOfStatistics];
}

std::set<std::size_t> TrainingState::Contents::with_tied(std::set<std::size_t> numbers) const {
  for (const auto& group : tied) {
    std::set<std::size_t> of_group;
    for (const std::string& name : group) of_group.insert(number(name));
    if (std::ranges::any_of(of_group, [&](std::size_t i) { return numbers.contains(i); }))
      numbers.merge(of_group);
  }
  return numbers;
}

std::set<std::size_t> TrainingState::Contents::named_by(std::string_view pattern) const {
  const std::vector<std::size_t> meant = matching(pattern, names);
  return with_tied({meant.begin(), meant.end()});
}

void TrainingState::Contents::write(std::string_view name,
                                    std::string_view part,
                                    const void* bytes) {
  for (const std::size_t i : with_tied({number(name)}))
    for (StateEntry* entry : copies[i]) {
      Tensor& target = part_of(*entry, part);
      const bool is_share = is_share_of(*entry, part);
      const auto* from = static_cast<const std::byte*>(bytes);
      if (target.bytes() != 0)
        std::memmove(
            target.data(), from + (is_share ? entry->first * sizeof(float) : 0), target.bytes());
      if (part == kValuePart) round_whole(*entry, from);
    }
}

TrainingState::TrainingState(const Shape& shape,
                             std::span<const HostedStage> stages,
                             const Optimizer& optimizer,
                             const std::vector<std::vector<std::string>>& tied,
                             ProcessGroup& group,
                             const GridPosition& seat,
                             bool spreads)
    : contents_(std::make_unique<Contents>()) {
  contents_->tied = tied;
  contents_->of_rank.resize(static_cast<std::size_t>(shape.ranks));
  for (int slot = 0; slot < optimizer.slots(); ++slot)
    contents_->parts.emplace_back(optimizer.slot_name(slot));
  for (const HostedStage& hosted : stages) {
    if (shape.replicas() * seat.grid().data() > 1) refuse_order(hosted);
    contents_->add(shape.rank(hosted.replica, hosted.stage),
                   {Replica{seat.copy() * shape.replicas() + hosted.replica.value},
                    hosted.stage,
                    hosted.body});
  }
  if (spreads)
    for (auto& entries : contents_->of_rank) share_out(entries, seat.grid().data(), seat.copy());
  contents_->make_room(optimizer);
  contents_->name_globally(group);
  contents_->find_copies();
  contents_->choose_speakers();
}

TrainingState::~TrainingState() = default;

std::span<const std::string> TrainingState::names() const {
  return contents_->names;
}

bool TrainingState::hosts(std::string_view name) const {
  return !contents_->copies[contents_->number(name)].empty();
}

std::span<const std::string> TrainingState::parts() const {
  return contents_->parts;
}

std::span<const std::string> TrainingState::parts(std::string_view name) const {
  const std::span<const std::string> parts = contents_->parts;
  return is_trained(name) ? parts : parts.first(kPartsOfStatistics);
}

bool TrainingState::is_spread(std::string_view name, std::string_view part) const {
  return is_share_of(contents_->hosted(name), part);
}

std::size_t TrainingState::optimizer_bytes() const {
  std::size_t bytes = 0;
  for (int rank = 0; rank < ranks(); ++rank) bytes += optimizer_bytes(Rank{rank});
  return bytes;
}

std::size_t TrainingState::optimizer_bytes(Rank rank) const {
  std::size_t bytes = 0;
  for (const StateEntry& entry : entries(rank)) {
    bytes += entry.master.bytes();
    for (const Tensor& slot : entry.slots) bytes += slot.bytes();
  }
  return bytes;
}

const Tensor& TrainingState::read(std::string_view name, std::string_view part) const {
  StateEntry& entry = contents_->hosted(name);
  const Tensor& found = contents_->part_of(entry, part);
  require(!is_share_of(entry, part), [&] {
    return "the " + std::string(part) + " of '" + std::string(name) +
           "' is spread over the copies of the pipeline; a checkpoint has it whole";
  });
  return found;
}

/// A tensor of the dtype and dims that all of a part has.
const Tensor& TrainingState::shape_of(std::string_view name, std::string_view part) const {
  return read(name, is_spread(name, part) ? kGradientPart : part);
}

void TrainingState::write(std::string_view name, const Tensor& contents, std::string_view part) {
  const Tensor& target = shape_of(name, part);
  require(contents.dtype() == target.dtype() && contents.dims() == target.dims(), [&] {
    return "the " + std::string(part) + " of '" + std::string(name) + "' is " + described(target) +
           ", got " + described(contents);
  });
  contents_->write(name, part, contents.data());
}

void TrainingState::write(std::string_view name,
                          std::span<const float> contents,
                          std::string_view part) {
  const Tensor& target = shape_of(name, part);
  require(target.dtype() == DType::F32 &&
              contents.size() == static_cast<std::size_t>(target.elements()),
          [&] {
            return "the " + std::string(part) + " of '" + std::string(name) + "' is " +
                   described(target) + ", got " + std::to_string(contents.size()) + " f32 numbers";
          });
  contents_->write(name, part, contents.data());
}

void TrainingState::freeze(std::string_view pattern, bool frozen) {
  set({.pattern = std::string(pattern), .frozen = frozen});
}

void TrainingState::set(const ParameterGroup& group) {
  check(group);
  for (const std::size_t i : contents_->named_by(group.pattern)) {
    if (group.frozen) contents_->frozen[i] = *group.frozen;
    for (StateEntry* entry : contents_->copies[i]) {
      if (group.frozen) entry->parameter->frozen = *group.frozen;
      if (group.learning_rate_factor) entry->learning_rate_factor = *group.learning_rate_factor;
      if (group.weight_decay) entry->weight_decay = group.weight_decay;
    }
  }
}

bool TrainingState::is_trained(std::string_view name) const {
  return contents_->trained[contents_->number(name)];
}

bool TrainingState::frozen(std::string_view name) const {
  return contents_->frozen[contents_->number(name)];
}

const TrainingCounters& TrainingState::counters() const {
  return contents_->counters;
}

void TrainingState::set_counters(const TrainingCounters& counters) {
  const auto require_count = [](const char* name, std::int64_t value) {
    require(value >= 0,
            std::string("counter ") + name + " must be at least 0, got " + std::to_string(value));
  };
  require_count("global_step", counters.global_step);
  require_count("mini_batches", counters.mini_batches);
  require_count("position.epoch", counters.position.epoch);
  require_count("position.batch", counters.position.batch);
  require_count("skipped_in_a_row", counters.skipped_in_a_row);
  require_count("fit_global_step", counters.fit_global_step);
  require_count("fit_mini_batches", counters.fit_mini_batches);
  require(counters.loss_scale.value > 0 && std::isfinite(counters.loss_scale.value), [&] {
    return "counter loss_scale must be above 0, got " + std::to_string(counters.loss_scale.value);
  });
  require_count("loss_scale.finite_in_a_row", counters.loss_scale.finite_in_a_row);
  require_count("partial.micro_batches", counters.partial.micro_batches);
  require_count("partial.samples", counters.partial.samples);
  contents_->counters = counters;
}

int TrainingState::ranks() const {
  return static_cast<int>(contents_->of_rank.size());
}

std::span<StateEntry> TrainingState::entries(Rank rank) {
  return contents_->of_rank[rank.index()];
}

std::span<const StateEntry> TrainingState::entries(Rank rank) const {
  return contents_->of_rank[rank.index()];
}

std::span<Parameter* const> TrainingState::parameters() const {
  return contents_->speakers;
}

}  // namespace millrace
