// The store: every hosted copy of a parameter with its slots, found by global name.
#include "millrace/training/state.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <sstream>

#include "millrace/core/error.hpp"
#include "millrace/stages/precision.hpp"
#include "training/name_pattern.hpp"
#include "training/optimizer_shards.hpp"

namespace millrace {
namespace {

constexpr std::string_view kValue = "value";
constexpr std::string_view kGradient = "gradient";
constexpr std::size_t kPartsOfStatistics = 2;  // those two

// What processes tell each other of a parameter, before its name.
constexpr char kTrained = 't';
constexpr char kStatistic = 's';

std::string described(const Tensor& tensor) {
  return std::string(name_of(tensor.dtype())) + " " + to_string(tensor.dims());
}

void check(const Parameter& parameter, Stage stage) {
  const std::string where =
      "parameter '" + parameter.name + "' of stage " + std::to_string(stage.value);
  require(!parameter.name.empty() && parameter.name.find('\n') == std::string::npos,
          where + " must have a name of one line");
  const DType wanted =
      parameter.role == ParameterRole::StatisticInOrder ? parameter.value.dtype() : DType::F32;
  require(parameter.value.dtype() == wanted && parameter.gradient.dtype() == wanted,
          where + " must be f32 with an f32 gradient to be trained, got " +
              name_of(parameter.value.dtype()) + " with " + name_of(parameter.gradient.dtype()));
  require(parameter.value.dims() == parameter.gradient.dims(),
          where + " and its gradient must have one shape, got " +
              to_string(parameter.value.dims()) + " and " + to_string(parameter.gradient.dims()));
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
  if (part == kGradient || !entry.is_spread) return false;
  return part != kValue || entry.master;
}

}  // namespace

void StateEntry::round_value() {
  if (!master) return;
  const std::span<float> rounded = parameter->value.as<float>().subspan(first, last - first);
  std::ranges::copy(master.as<float>(), rounded.begin());
  round_to(parameter->precision, rounded);
}

struct TrainingState::Contents {
  void add(Rank rank, const HostedStage& hosted);
  void make_room(const Optimizer& optimizer);
  void name_globally(ProcessGroup& group);
  void find_copies();
  void choose_speakers();
  [[nodiscard]] std::size_t number(std::string_view name) const;
  [[nodiscard]] StateEntry& hosted(std::string_view name) const;
  [[nodiscard]] Tensor& part_of(StateEntry& entry, std::string_view part) const;
  [[nodiscard]] std::set<std::size_t> with_tied(std::set<std::size_t> numbers) const;
  [[nodiscard]] std::set<std::size_t> named_by(std::string_view pattern) const;
  void write(std::string_view name, std::string_view part, const void* bytes);

  std::vector<std::vector<std::string>> tied;
  TrainingCounters counters;
  std::vector<std::string> parts{std::string(kValue), std::string(kGradient)};
  std::vector<std::string> names;   // of all processes, ascending
  std::vector<std::size_t> member;  // by number: a process that hosts it
  std::vector<bool> trained;        // by number; the others are running statistics
  std::vector<bool> frozen;         // by number
  std::vector<std::vector<StateEntry>> of_rank;
  std::vector<std::vector<StateEntry*>> copies;  // by number: those here, first copies first
  std::vector<Parameter*> speakers;              // one copy of each hosted here, by name
};

void TrainingState::Contents::add(Rank rank, const HostedStage& hosted) {
  for (Parameter* parameter : hosted.body->parameters()) {
    check(*parameter, hosted.stage);
    StateEntry& entry = of_rank[rank.index()].emplace_back();
    entry.parameter = parameter;
    entry.last = static_cast<std::size_t>(parameter->value.elements());
    entry.replica = hosted.replica;
    entry.stage = hosted.stage;
    entry.rank = rank;
  }
}

/// Zero slots, and master values of what is rounded.
void TrainingState::Contents::make_room(const Optimizer& optimizer) {
  for (auto& entries : of_rank)
    for (StateEntry& entry : entries) {
      if (!entry.is_trained()) continue;
      Parameter& parameter = *entry.parameter;
      const Dims dims = entry.is_spread ? Dims{static_cast<std::int64_t>(entry.last - entry.first)}
                                        : parameter.value.dims();
      for (int slot = 0; slot < optimizer.slots(); ++slot)
        entry.slots.emplace_back(DType::F32, dims).fill_zero();
      if (!is_narrow(parameter.precision)) continue;
      entry.master = Tensor(DType::F32, dims);
      const std::span<float> value = parameter.value.as<float>();
      std::ranges::copy(value.subspan(entry.first, entry.last - entry.first),
                        entry.master.as<float>().begin());
      round_to(parameter.precision, value);
    }
}

void TrainingState::Contents::name_globally(ProcessGroup& group) {
  std::string mine;
  for (const auto& entries : of_rank)
    for (const StateEntry& entry : entries)
      if (entry.replica == Replica{0})
        mine += (entry.is_trained() ? kTrained : kStatistic) + entry.parameter->name + '\n';
  std::map<std::string, std::size_t> member_of;
  std::set<std::string> statistics;
  const std::vector<std::string> said = group.gather(mine, Label::Model);
  for (std::size_t i = 0; i < said.size(); ++i) {
    std::istringstream lines(said[i]);
    for (std::string line; std::getline(lines, line);) {
      const std::string name = line.substr(1);
      require(member_of.emplace(name, i).second,
              "two parameters are called '" + name + "'; names must be global and unique");
      if (line.front() == kStatistic) statistics.insert(name);
    }
  }
  for (const auto& [name, host] : member_of) {
    names.push_back(name);
    member.push_back(host);
    trained.push_back(!statistics.contains(name));
  }
  frozen.assign(names.size(), false);
}

void TrainingState::Contents::find_copies() {
  copies.resize(names.size());
  for (const bool first : {true, false})
    for (auto& entries : of_rank)
      for (StateEntry& entry : entries) {
        if ((entry.replica == Replica{0}) != first) continue;
        const std::string& name = entry.parameter->name;
        const auto found = std::ranges::lower_bound(names, name);
        require(found != names.end() && *found == name,
                "parameter '" + name + "' exists in a copy of stage " +
                    std::to_string(entry.stage.value) + " but not in its first copy");
        entry.number = static_cast<std::size_t>(found - names.begin());
        copies[entry.number].push_back(&entry);
      }
}

void TrainingState::Contents::choose_speakers() {
  std::set<std::string> silent;
  for (const auto& group : tied)
    for (const std::string& name : group)
      if (name != group.front()) silent.insert(name);
  for (const auto& here : copies) {
    if (here.empty()) continue;
    if (here.front()->is_trained()) speakers.push_back(here.front()->parameter);
    for (StateEntry* entry : here)
      entry->counts = entry->replica == Replica{0} && !silent.contains(entry->parameter->name);
  }
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
  if (part == kValue) return entry.value();
  if (part == kGradient) return entry.parameter->gradient;
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
      if (part == kValue) round_whole(*entry, from);
    }
}

TrainingState::TrainingState(const Shape& shape,
                             std::span<const HostedStage> stages,
                             const Optimizer& optimizer,
                             const std::vector<std::vector<std::string>>& tied,
                             ProcessGroup& group,
                             const GridSeat& seat,
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
  return read(name, is_spread(name, part) ? kGradient : part);
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
