// Norm, update and hash over the parameters of all stages.
#include "training/model_state.hpp"

#include <algorithm>
#include <map>

#include "millrace/core/edit_distance.hpp"
#include "millrace/core/error.hpp"
#include "millrace/training/weights_hash.hpp"
#include "training/name_pattern.hpp"

namespace millrace {
namespace {

constexpr char kSeparator = '\n';

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find(kSeparator, at);
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

}  // namespace

ModelState::ModelState(const Shape& shape,
                       std::span<const HostedStage> stages,
                       const Optimizer& optimizer,
                       const std::vector<std::vector<std::string>>& tied,
                       Team& team)
    : optimizer_(&optimizer),
      team_(&team),
      of_rank_(static_cast<std::size_t>(shape.ranks)),
      groups_(tied) {
  for (const HostedStage& hosted : stages)
    add_stage(shape.rank(hosted.replica, hosted.stage), hosted);
  number_globally();
  choose_speakers();
  tie(tied);
}

void ModelState::tie(const std::vector<std::vector<std::string>>& groups) {
  std::vector<TiedWeights::Hosted> hosted;
  for (const auto& rank : of_rank_)
    for (const Held& held : rank) hosted.push_back({held.parameter, held.first_copy});
  tied_.emplace(groups, std::move(hosted), *team_);
  tied_->share_values();
  for (auto& rank : of_rank_)
    for (Held& held : rank) held.in_norm = held.first_copy && tied_->counts(held.parameter->name);
}

void ModelState::add_stage(Rank rank, const HostedStage& hosted) {
  for (Parameter* parameter : hosted.body->parameters()) {
    const std::string where =
        "parameter '" + parameter->name + "' of stage " + std::to_string(hosted.stage.value);
    require(!parameter->name.empty() && parameter->name.find(kSeparator) == std::string::npos,
            where + " must have a name of one line");
    require(parameter->value.dtype() == DType::F32 && parameter->gradient.dtype() == DType::F32,
            where + " must be f32 with an f32 gradient to be trained, got " +
                name_of(parameter->value.dtype()) + " with " +
                name_of(parameter->gradient.dtype()));
    require(parameter->value.dims() == parameter->gradient.dims(),
            where + " and its gradient must have one shape, got " +
                to_string(parameter->value.dims()) + " and " +
                to_string(parameter->gradient.dims()));
    Held held;
    held.parameter = parameter;
    held.stage = hosted.stage;
    held.first_copy = hosted.replica == Replica{0};
    for (int slot = 0; slot < optimizer_->slots(); ++slot) {
      held.arrays.emplace_back(DType::F32, parameter->value.dims()).fill_zero();
      held.state.push_back(held.arrays.back().as<float>());
    }
    of_rank_[rank.index()].push_back(std::move(held));
  }
}

void ModelState::number_globally() {
  std::string mine;
  for (const auto& rank : of_rank_)
    for (const Held& held : rank)
      if (held.first_copy) mine += held.parameter->name + kSeparator;
  std::map<std::string, std::size_t> numbers;
  for (const std::string& names : team_->gather(mine, Topic::Model))
    for (const std::string& name : lines_of(names))
      require(numbers.emplace(name, 0).second,
              "two parameters are called '" + name + "'; names must be global and unique");
  std::size_t next = 0;
  for (auto& [name, number] : numbers) {
    number = next++;
    names_.push_back(name);
  }
  sums_.resize(numbers.size());
  for (auto& rank : of_rank_)
    for (Held& held : rank) {
      const auto found = numbers.find(held.parameter->name);
      require(found != numbers.end(),
              "parameter '" + held.parameter->name + "' exists in a copy of stage " +
                  std::to_string(held.stage.value) + " but not in its first copy");
      held.number = found->second;
    }
}

/// The first copy where it is hosted here, else another.
void ModelState::choose_speakers() {
  std::vector<Parameter*> speaker(names_.size(), nullptr);
  for (const bool first : {true, false})
    for (const auto& rank : of_rank_)
      for (const Held& held : rank) {
        if (held.first_copy != first) continue;
        Parameter*& place = speaker[held.number];
        if (place == nullptr)
          place = held.parameter;
        else
          others_.emplace_back(held.parameter, place);
      }
  for (Parameter* parameter : speaker)
    if (parameter != nullptr) hosted_.push_back(parameter);
}

void ModelState::visit_gradients(const std::function<void(std::span<Parameter* const>)>& visit) {
  visit(hosted_);
  for (const auto& [copy, speaker] : others_) {
    const std::span<const float> gradient = speaker->gradient.as<float>();
    std::copy(gradient.begin(), gradient.end(), copy->gradient.as<float>().begin());
  }
}

/// All that the pattern means, of all members, with their tied partners.
std::set<std::string> ModelState::names_of(std::string_view pattern) const {
  std::set<std::string> meant;
  for (const std::string& name : names_)
    if (matches(pattern, name)) meant.insert(name);
  for (const auto& group : groups_)
    if (std::ranges::any_of(group, [&](const std::string& name) { return meant.contains(name); }))
      meant.insert(group.begin(), group.end());
  return meant;
}

void ModelState::freeze(std::string_view pattern, bool frozen) {
  const std::set<std::string> meant = names_of(pattern);
  require(!meant.empty(), [&] {
    const auto nearest = std::ranges::min_element(
        names_, {}, [&](const std::string& name) { return edit_distance(pattern, name); });
    return "no parameter is called '" + std::string(pattern) + "'" +
           (nearest == names_.end()
                ? std::string()
                : "; the nearest of " + std::to_string(names_.size()) + " is '" + *nearest + "'");
  });
  for (auto& rank : of_rank_)
    for (Held& held : rank)
      if (meant.contains(held.parameter->name)) held.parameter->frozen = frozen;
}

GradientNorm ModelState::norm(Executor& executor, std::optional<double> limit) {
  std::fill(sums_.begin(), sums_.end(), 0.0);
  executor.for_each_rank([&](Rank rank) {
    for (const Held& held : of_rank_[rank.index()])
      if (held.in_norm && !held.parameter->frozen)
        sums_[held.number] = sum_of_squares(held.parameter->gradient.as<float>());
  });
  team_->sum(sums_, Topic::GradientNorm);
  return gradient_norm(sums_, limit);
}

void ModelState::move(const Optimizer& optimizer, Held& held, UpdateSettings settings) {
  settings.decays = held.parameter->decays;
  const std::span<float> gradient = held.parameter->gradient.as<float>();
  if (!held.parameter->frozen)
    optimizer.update(settings, held.parameter->value.as<float>(), gradient, held.state);
  std::fill(gradient.begin(), gradient.end(), 0.0F);
}

void ModelState::update(Executor& executor, const UpdateSettings& settings) {
  executor.for_each_rank([&](Rank rank) {
    for (Held& held : of_rank_[rank.index()]) {
      try {
        move(*optimizer_, held, settings);
      } catch (const std::exception& problem) {
        Action action;
        action.op = Op::OptimizerStep;
        action.stage = held.stage;
        throw StepError("optimizer step of stage " + std::to_string(held.stage.value) +
                            " failed on rank " + std::to_string(rank.value) + ", parameter '" +
                            held.parameter->name + "': " + problem.what(),
                        rank,
                        action);
      }
    }
  });
}

void ModelState::zero_gradients() noexcept {
  for (auto& rank : of_rank_)
    for (Held& held : rank) held.parameter->gradient.fill_zero();
}

std::string ModelState::hash() const {
  std::string mine;
  for (const auto& rank : of_rank_)
    for (const Held& held : rank)
      if (held.first_copy)
        mine +=
            held.parameter->name + kSeparator + tensor_digest(held.parameter->value) + kSeparator;
  std::map<std::string, std::string> digest_of;
  for (const std::string& part : team_->gather(mine, Topic::WeightsHash)) {
    const auto lines = lines_of(part);
    for (std::size_t i = 0; i + 1 < lines.size(); i += 2) digest_of[lines[i]] = lines[i + 1];
  }
  return combine_digests(digest_of);
}

std::vector<Parameter*> ModelState::parameters() const {
  std::vector<Parameter*> all(sums_.size(), nullptr);
  for (const auto& rank : of_rank_)
    for (const Held& held : rank)
      if (held.first_copy) all[held.number] = held.parameter;
  std::erase(all, nullptr);
  return all;
}

}  // namespace millrace
