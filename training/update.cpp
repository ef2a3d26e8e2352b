// Norm, update and hash over the store.
#include "training/update.hpp"

#include <algorithm>
#include <map>
#include <sstream>

#include "millrace/core/error.hpp"
#include "millrace/training/weights_hash.hpp"
#include "training/watch/step_times.hpp"

namespace millrace {
namespace {

template <class Use>
void for_each_entry(const TrainingState& state, Use use) {
  for (int rank = 0; rank < state.ranks(); ++rank)
    for (const StateEntry& entry : state.entries(Rank{rank})) use(entry);
}

StepError failure_of(const StateEntry& entry, const std::exception& cause) {
  Action action;
  action.op = Op::OptimizerStep;
  action.stage = entry.stage;
  return {"optimizer step of stage " + std::to_string(entry.stage.value) + " failed on rank " +
              std::to_string(entry.rank.value) + ", parameter '" + entry.parameter->name +
              "': " + cause.what(),
          entry.rank,
          action};
}

}  // namespace

void move(StateEntry& entry, const Optimizer& optimizer, UpdateSettings settings) {
  Parameter& parameter = *entry.parameter;
  settings.decays = parameter.decays;
  settings.weight_decay = entry.weight_decay;
  settings.learning_rate *= entry.learning_rate_factor;
  if (parameter.frozen || !entry.is_trained()) {
    parameter.gradient.fill_zero();
    return;
  }
  std::vector<std::span<float>> slots;
  for (Tensor& slot : entry.slots) slots.push_back(slot.as<float>());
  apply(optimizer, settings, entry.value().as<float>(), parameter.gradient.as<float>(), slots);
  entry.round_value();
}

void visit_gradients(TrainingState& state,
                     const std::function<void(std::span<Parameter* const>)>& visit) {
  visit(state.parameters());
  std::map<std::string_view, const Parameter*> speaker_of;
  for (const Parameter* speaker : state.parameters()) speaker_of[speaker->name] = speaker;
  for_each_entry(state, [&](const StateEntry& entry) {
    if (!entry.is_trained()) return;
    const Parameter* speaker = speaker_of.at(entry.parameter->name);
    if (speaker != entry.parameter)
      std::ranges::copy(speaker->gradient.as<float>(),
                        entry.parameter->gradient.as<float>().begin());
  });
}

void unscale_gradients(const TrainingState& state, double loss_scale) {
  const auto factor = static_cast<float>(1 / loss_scale);
  for_each_entry(state, [&](const StateEntry& entry) {
    if (!entry.is_trained()) return;
    for (float& number : entry.parameter->gradient.as<float>()) number *= factor;
  });
}

GradientNorm norm_of(const TrainingState& state,
                     Executor& executor,
                     ProcessGroup& group,
                     std::optional<double> limit,
                     double loss_scale,
                     std::span<double> seconds) {
  std::vector<double> sums(state.names().size(), 0.0);
  executor.for_each_rank([&](Rank rank) {
    const Timed timed(seconds[rank.index()]);
    for (const StateEntry& entry : state.entries(rank))
      if (entry.counts && entry.is_trained() && !entry.parameter->frozen)
        sums[entry.number] = sum_of_squares(entry.parameter->gradient.as<float>());
  });
  group.sum(sums, Label::GradientNorm);
  return gradient_norm(sums, limit, loss_scale);
}

void update(TrainingState& state,
            Executor& executor,
            const Optimizer& optimizer,
            const UpdateSettings& settings,
            std::span<double> seconds) {
  executor.for_each_rank([&](Rank rank) {
    const Timed timed(seconds[rank.index()]);
    for (StateEntry& entry : state.entries(rank)) {
      try {
        move(entry, optimizer, settings);
      } catch (const std::exception& cause) {
        throw failure_of(entry, cause);
      }
    }
  });
}

void zero_gradients(const TrainingState& state) noexcept {
  for_each_entry(state, [](const StateEntry& entry) { entry.parameter->gradient.fill_zero(); });
}

std::string hash_of(const TrainingState& state, ProcessGroup& group) {
  std::string mine;
  for_each_entry(state, [&](const StateEntry& entry) {
    if (entry.replica == Replica{0})
      mine += entry.parameter->name + '\n' + tensor_digest(entry.value()) + '\n';
  });
  std::map<std::string, std::string> digest_of;
  for (const std::string& part : group.gather(mine, Label::WeightsHash)) {
    std::istringstream lines(part);
    for (std::string name; std::getline(lines, name);) std::getline(lines, digest_of[name]);
  }
  return combine_digests(digest_of);
}

}  // namespace millrace
