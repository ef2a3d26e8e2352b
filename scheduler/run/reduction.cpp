// Sums over replicas and ties, in fixed order.
#include "run/reduction.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "run/gradient_sum.hpp"

namespace millrace::run {

namespace {

void write(Tensor& to, const Tensor& from) {
  if (from.bytes() != 0) std::memcpy(to.data(), from.data(), from.bytes());
}

}  // namespace

Reduction::Reduction(std::vector<ReductionMember> members, std::vector<StageTie> ties)
    : members_(std::move(members)) {
  for (const ReductionMember& member : members_) {
    parameters_.emplace_back();
    if (member.body != nullptr) {
      parameters_.back() = member.body->parameters();
      ++here_;
    } else if (std::ranges::find(other_ranks_, member.rank) == other_ranks_.end()) {
      other_ranks_.push_back(member.rank);
    }
  }
  find_tied(ties);
}

void Reduction::find_tied(const std::vector<StageTie>& ties) {
  const auto count_of = [&](Stage stage) {
    std::size_t count = 0;
    for (const auto& tie : ties_)
      count += static_cast<std::size_t>(
          std::ranges::count(tie, stage, [](const TiedGradient& tied) { return tied.stage; }));
    return count;
  };
  for (const StageTie& tie : ties) {
    ties_.emplace_back();
    for (const StageWeight& weight : tie.weights) {
      const TiedGradient tied{weight.stage, count_of(weight.stage), parameter_of(weight)};
      require(ties_.back().empty() || ties_.back().back().stage != tied.stage ||
                  !lives_here(tied.stage) || ties_.back().back().parameter < tied.parameter,
              [&] {
                return "tied weight '" + weight.name + "' of stage " +
                       std::to_string(weight.stage.value) +
                       " comes before the one named before it; they are named in the order of the "
                       "layers";
              });
      ties_.back().push_back(tied);
    }
  }
}

/// 0 where the stage lives elsewhere.
std::size_t Reduction::parameter_of(const StageWeight& weight) const {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].stage != weight.stage || members_[i].body == nullptr) continue;
    const auto found = std::ranges::find(
        parameters_[i], weight.name, [](const Parameter* parameter) { return parameter->name; });
    require(found != parameters_[i].end(), [&] {
      return "stage " + std::to_string(weight.stage.value) + " has no parameter '" + weight.name +
             "', which the plan ties";
    });
    return static_cast<std::size_t>(found - parameters_[i].begin());
  }
  return 0;
}

bool Reduction::lives_here(Stage stage) const {
  return std::ranges::any_of(members_, [&](const ReductionMember& member) {
    return member.stage == stage && member.body != nullptr;
  });
}

TensorList Reduction::gradients_for(Rank rank,
                                    Replica replica,
                                    Stage stage,
                                    TensorPool& pool) const {
  const auto is_sender = [&](const ReductionMember& member) {
    return member.replica == replica && member.stage == stage;
  };
  const bool has_copy = std::ranges::any_of(members_, [&](const ReductionMember& member) {
    return member.rank == rank && member.stage == stage;
  });
  const auto sender = std::ranges::find_if(members_, is_sender) - members_.begin();
  const std::vector<Parameter*>& parameters = parameters_[static_cast<std::size_t>(sender)];
  TensorList given;
  if (has_copy) {
    for (const Parameter* parameter : parameters)
      given.push_back(copy_into(pool, parameter->gradient));
    return given;
  }
  for (const auto& tie : ties_)
    for (const TiedGradient& tied : tie)
      if (tied.stage == stage)
        given.push_back(copy_into(pool, parameters[tied.parameter]->gradient));
  return given;
}

/// Of a member: its own where it lives here, else what it sent.
Reduction::Gradients Reduction::gradients(std::size_t member,
                                          std::vector<TensorList>& received) const {
  Gradients all;
  for (Parameter* parameter : parameters_[member]) all.push_back(&parameter->gradient);
  if (members_[member].body == nullptr)
    for (std::size_t k = 0; k < received[member].size(); ++k) all.push_back(&received[member][k]);
  return all;
}

/// Afterwards every copy of the stage has the sum, in what it keeps or what it sent.
void Reduction::add_replicas(Stage stage,
                             std::vector<TensorList>& received,
                             TensorPool& pool) const {
  std::vector<Gradients> copies;
  for (std::size_t i = 0; i < members_.size(); ++i)
    if (members_[i].stage == stage) copies.push_back(gradients(i, received));
  for (const Gradients& copy : copies)
    if (copy.size() != copies.front().size())
      throw Mismatch("copies of stage " + std::to_string(stage.value) + " have " +
                     std::to_string(copies.front().size()) + " and " + std::to_string(copy.size()) +
                     " parameters");
  if (copies.size() < 2) return;
  for (std::size_t k = 0; k < copies.front().size(); ++k) {
    Tensor sum = copy_into(pool, *copies.front()[k]);
    for (std::size_t i = 1; i < copies.size(); ++i) add_gradient(sum, *copies[i][k], stage);
    for (const Gradients& copy : copies) write(*copy[k], sum);
  }
}

void Reduction::add_tie(const std::vector<TiedGradient>& tie,
                        std::vector<TensorList>& received,
                        TensorPool& pool) const {
  const auto gradient = [&](const TiedGradient& tied, std::size_t member) -> Tensor& {
    const bool here = members_[member].body != nullptr;
    const Gradients all = gradients(member, received);
    const std::size_t place = here ? tied.parameter : tied.sent;
    if (place >= all.size())
      throw Mismatch("stage " + std::to_string(tied.stage.value) + " sent " +
                     std::to_string(all.size()) + " tied gradients, not so many as it has");
    return *all[place];
  };
  const auto for_each_copy = [&](const TiedGradient& tied, bool all, const auto& use) {
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (members_[i].stage != tied.stage) continue;
      // Of a stage that also lives here, others sent all gradients, which are in the sum.
      if (lives_here(tied.stage) && members_[i].body == nullptr) continue;
      use(gradient(tied, i));
      if (!all) return;
    }
  };
  Tensor sum;
  for (const TiedGradient& tied : tie)
    for_each_copy(tied, false, [&](const Tensor& term) {
      if (!sum)
        sum = copy_into(pool, term);
      else
        add_gradient(sum, term, tied.stage);
    });
  for (const TiedGradient& tied : tie)
    if (lives_here(tied.stage))
      for_each_copy(tied, true, [&](Tensor& target) { write(target, sum); });
}

void Reduction::add(std::vector<TensorList>& received, TensorPool& pool) const {
  for (std::size_t i = 0; i < members_.size(); ++i)
    if (i == 0 || members_[i].stage != members_[i - 1].stage)
      add_replicas(members_[i].stage, received, pool);
  for (const auto& tie : ties_) add_tie(tie, received, pool);
}

}  // namespace millrace::run
