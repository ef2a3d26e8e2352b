#include "training/ties.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <tuple>

#include "core/edit_distance.hpp"
#include "millrace/core/error.hpp"

namespace millrace {
namespace {

/// Where a parameter lives, of what shape it is.
struct Found {
  Stage stage;
  std::size_t place = 0;  // among the parameters of the stage
  std::string shape;
};

/// The parameters of all members, by name.
std::map<std::string, Found> parameters_of(std::span<const HostedStage> stages,
                                           ProcessGroup& group) {
  std::ostringstream mine;
  for (const HostedStage& hosted : stages) {
    if (hosted.replica != Replica{0}) continue;
    std::size_t place = 0;
    for (const Parameter* parameter : hosted.body->parameters())
      mine << parameter->name << '\n'
           << hosted.stage.value << ' ' << place++ << ' ' << to_string(parameter->value.dims())
           << '\n';
  }
  std::map<std::string, Found> all;
  for (const std::string& text : group.gather(mine.str(), Label::TiedWeights)) {
    std::istringstream lines(text);
    for (std::string name; std::getline(lines, name);) {
      Found& found = all[name];
      lines >> found.stage.value >> found.place;
      lines.ignore();
      std::getline(lines, found.shape);
    }
  }
  return all;
}

std::string nearest_to(const std::string& wanted, const std::map<std::string, Found>& known) {
  if (known.empty()) return {};
  const auto nearest = std::ranges::min_element(
      known, {}, [&](const auto& each) { return edit_distance(wanted, each.first); });
  return "; the nearest is '" + nearest->first + "'";
}

StageTie tie_of(const std::vector<std::string>& group, const std::map<std::string, Found>& known) {
  require(group.size() >= 2,
          "a tied group needs at least 2 parameters, got " + std::to_string(group.size()));
  std::vector<std::pair<Found, std::string>> members;
  for (const std::string& name : group) {
    const auto found = known.find(name);
    require(found != known.end(), [&] {
      return "tied parameter '" + name + "' does not exist" + nearest_to(name, known);
    });
    members.emplace_back(found->second, name);
    require(found->second.shape == members.front().first.shape, [&] {
      return "tied parameters must have one shape: '" + group.front() + "' has " +
             members.front().first.shape + ", '" + name + "' has " + found->second.shape;
    });
  }
  std::ranges::sort(members, {}, [](const auto& member) {
    return std::tuple(member.first.stage, member.first.place);
  });
  StageTie tie;
  for (const auto& [found, name] : members) tie.weights.push_back({found.stage, name});
  return tie;
}

void require_tied_once(const std::vector<StageTie>& ties) {
  std::set<std::string> known;
  for (const StageTie& tie : ties)
    for (const StageWeight& weight : tie.weights)
      require(known.insert(weight.name).second,
              [&] { return "parameter '" + weight.name + "' is tied twice"; });
}

}  // namespace

Program with_ties(const Program& program,
                  std::span<const HostedStage> stages,
                  const TiedNames& groups,
                  ProcessGroup& group) {
  // Also without ties: another process may have some, and hears of the difference later.
  const auto known = parameters_of(stages, group);
  Program tied = program;
  for (const auto& names : groups) tied.shape.ties.push_back(tie_of(names, known));
  require_tied_once(tied.shape.ties);
  return tied;
}

std::vector<std::vector<std::string>> tied_names(const Shape& shape, const TiedNames& groups) {
  std::vector<std::vector<std::string>> names;
  for (const StageTie& tie : shape.ties) {
    names.emplace_back();
    for (const StageWeight& weight : tie.weights) names.back().push_back(weight.name);
  }
  for (const auto& group : groups)
    require(std::ranges::any_of(names,
                                [&](const std::vector<std::string>& tie) {
                                  return std::ranges::is_permutation(tie, group);
                                }),
            [&] {
              return "the program of these parts does not tie '" +
                     (group.empty() ? std::string() : group.front()) +
                     "'; declare it in Shape::ties, or let rank_parts make the parts";
            });
  return names;
}

void share_tied_values(TrainingState& state,
                       const std::vector<std::vector<std::string>>& tied,
                       const TiedNames& groups,
                       ProcessGroup& group) {
  std::set<std::string> named_first;
  for (const auto& names : groups) named_first.insert(names.front());
  for (const auto& names : tied) {
    const auto chosen = std::ranges::find_if(
        names, [&](const std::string& name) { return named_first.contains(name); });
    const std::string& first = chosen == names.end() ? names.front() : *chosen;
    std::string mine;
    if (state.hosts(first)) {
      const Tensor& value = state.read(first);
      mine.assign(static_cast<const char*>(value.data()), value.bytes());
    }
    const std::vector<std::string> said = group.gather(mine, Label::TiedWeights);
    const auto heard =
        std::ranges::find_if(said, [](const std::string& bytes) { return !bytes.empty(); });
    const auto here =
        std::ranges::find_if(names, [&](const std::string& name) { return state.hosts(name); });
    if (heard == said.end() || here == names.end()) continue;
    std::vector<float> value(heard->size() / sizeof(float));
    std::copy(heard->begin(), heard->end(), reinterpret_cast<char*>(value.data()));
    state.write(*here, value);
  }
}

}  // namespace millrace
