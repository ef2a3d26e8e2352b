// Groups of equal weights, agreed through the team.
#include "training/tied_weights.hpp"

#include <algorithm>
#include <sstream>
#include <utility>

#include "millrace/core/error.hpp"

namespace millrace {
namespace {

struct Extent {
  std::string shape;
  std::size_t elements = 0;
};

/// What all members host, by name.
std::map<std::string, Extent> extents_of(const std::vector<TiedWeights::Hosted>& hosted,
                                         Team& team) {
  std::ostringstream mine;
  for (const TiedWeights::Hosted& held : hosted)
    if (held.first_copy)
      mine << held.parameter->name << '\n'
           << to_string(held.parameter->value.dims()) << ' ' << held.parameter->value.elements()
           << '\n';
  std::map<std::string, Extent> extents;
  for (const std::string& text : team.gather(mine.str(), Topic::TiedWeights)) {
    std::istringstream lines(text);
    for (std::string name; std::getline(lines, name); lines.ignore()) {
      Extent& extent = extents[name];
      lines >> extent.shape >> extent.elements;
    }
  }
  return extents;
}

}  // namespace

TiedWeights::TiedWeights(const std::vector<std::vector<std::string>>& groups,
                         std::vector<Hosted> hosted,
                         Team& team)
    : hosted_(std::move(hosted)), team_(&team) {
  if (groups.empty()) return;
  name_members(groups);
  measure(groups);
}

void TiedWeights::name_members(const std::vector<std::vector<std::string>>& groups) {
  for (const auto& names : groups) {
    require(names.size() >= 2,
            "a tied group needs at least 2 parameters, got " + std::to_string(names.size()));
    Group& group = groups_.emplace_back();
    for (std::size_t i = 0; i < names.size(); ++i) {
      require(place_.emplace(names[i], i).second, "parameter '" + names[i] + "' is tied twice");
      Member& member = group.members.emplace_back();
      for (const Hosted& held : hosted_)
        if (held.parameter->name == names[i]) member.here.push_back(held);
    }
  }
}

void TiedWeights::measure(const std::vector<std::vector<std::string>>& groups) {
  const auto extents = extents_of(hosted_, *team_);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::string& first = groups[i].front();
    for (const std::string& name : groups[i]) {
      const auto found = extents.find(name);
      require(found != extents.end(), "tied parameter '" + name + "' does not exist");
      const std::string& wanted = extents.at(first).shape;
      require(found->second.shape == wanted,
              "tied parameters must have one shape: '" + first + "' has " + wanted + ", '" + name +
                  "' has " + found->second.shape);
    }
    groups_[i].elements = extents.at(first).elements;
  }
}

/// values_ := [member][element] of the group, from whoever hosts each.
void TiedWeights::collect(const Group& group, Tensor Parameter::*part) {
  values_.assign(group.members.size() * group.elements, 0.0);
  for (std::size_t i = 0; i < group.members.size(); ++i)
    for (const Hosted& held : group.members[i].here) {
      if (!held.first_copy) continue;
      const auto source = (held.parameter->*part).as<float>();
      std::copy(source.begin(),
                source.end(),
                values_.begin() + static_cast<std::ptrdiff_t>(i * group.elements));
    }
  team_->sum(values_, Topic::TiedWeights);
}

/// Every parameter of the group hosted here := sum of the first `members` rows of values_.
void TiedWeights::spread(const Group& group, Tensor Parameter::*part, std::size_t members) {
  for (std::size_t i = 1; i < members; ++i)
    for (std::size_t element = 0; element < group.elements; ++element)
      values_[element] += values_[i * group.elements + element];
  for (const Member& member : group.members)
    for (const Hosted& held : member.here) {
      const auto target = (held.parameter->*part).as<float>();
      // Adding 0 turns -0 into 0, as a sum over several processes has done already.
      for (std::size_t element = 0; element < group.elements; ++element)
        target[element] = static_cast<float>(values_[element] + 0.0);
    }
}

void TiedWeights::share_values() {
  for (const Group& group : groups_) {
    collect(group, &Parameter::value);
    spread(group, &Parameter::value, 1);
  }
}

void TiedWeights::share_gradients() {
  for (const Group& group : groups_) {
    collect(group, &Parameter::gradient);
    spread(group, &Parameter::gradient, group.members.size());
  }
}

bool TiedWeights::counts(const std::string& name) const {
  const auto found = place_.find(name);
  return found == place_.end() || found->second == 0;
}

}  // namespace millrace
