// Fills the store: checks every hosted parameter, makes room for what the optimizer keeps of it,
// and agrees with the other processes on the names of all.
#include "training/state_contents.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "millrace/core/error.hpp"
#include "millrace/stages/layer.hpp"

namespace millrace {
namespace {

// What processes tell each other of a parameter, before its name.
constexpr char kTrained = 't';
constexpr char kStatistic = 's';

void check(const Parameter& parameter, Stage stage) {
  const std::string where =
      "parameter '" + parameter.name + "' of stage " + std::to_string(stage.value);
  require(!parameter.name.empty() && parameter.name.find('\n') == std::string::npos,
          where + " must have a name of one line");
  require(parameter.value.dtype() == DType::F32 && parameter.gradient.dtype() == DType::F32,
          where + " must be f32 with an f32 gradient to be trained, got " +
              name_of(parameter.value.dtype()) + " with " + name_of(parameter.gradient.dtype()));
  require(parameter.value.dims() == parameter.gradient.dims(),
          where + " and its gradient must have one shape, got " +
              to_string(parameter.value.dims()) + " and " + to_string(parameter.gradient.dims()));
}

}  // namespace

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

}  // namespace millrace
