// Norm, update and hash over the store.
#include "training/update.hpp"

#include <algorithm>
#include <map>
#include <sstream>

#include "millrace/core/error.hpp"
#include "millrace/training/state.hpp"
#include "millrace/training/step_times.hpp"
#include "training/optimizer_shards.hpp"

namespace millrace {
namespace {

template <class Use>
void for_each_entry(const TrainingState& state, Use use) {
  for (int rank = 0; rank < state.ranks(); ++rank)
    for (const StateEntry& entry : state.entries(Rank{rank})) use(entry);
}

/// What the optimizer works on here: a parameter, or a share of one.
struct Share {
  explicit Share(StateEntry& entry)
      : value(entry.value().as<float>()), gradient(entry.parameter->gradient.as<float>()) {
    const std::size_t count = entry.last - entry.first;
    if (!entry.master) value = value.subspan(entry.first, count);
    gradient = gradient.subspan(entry.first, count);
    for (Tensor& slot : entry.slots) slots.push_back(slot.as<float>());
  }

  std::span<float> value, gradient;
  std::vector<std::span<float>> slots;
};

UpdateSettings settings_for(const StateEntry& entry, UpdateSettings settings) {
  settings.decays = entry.parameter->decays;
  settings.weight_decay = entry.weight_decay;
  settings.learning_rate *= entry.learning_rate_factor;
  return settings;
}

/// Of a place whose copies have added them: in the first copy's process.
void give_sums(std::span<const StateEntry> entries,
               const std::vector<double>& of_entries,
               std::span<double> sums) {
  for (std::size_t i = 0; i < of_entries.size(); ++i)
    if (entries[i].counts) sums[entries[i].number] = of_entries[i];
}

StepError failure_of(const StateEntry& entry,
                     const GridPosition& seat,
                     const std::exception& cause) {
  Action action;
  action.op = Op::OptimizerStep;
  action.stage = entry.stage;
  return {"optimizer step of stage " + std::to_string(entry.stage.value) + " failed on " +
              seat.name_of(entry.rank) + ", parameter '" + entry.parameter->name +
              "': " + cause.what(),
          entry.rank,
          action};
}

}  // namespace

bool is_moved(const StateEntry& entry) {
  return entry.is_trained() && !entry.parameter->frozen;
}

void prepare(StateEntry& entry,
             const Optimizer& optimizer,
             const UpdateSettings& settings,
             std::span<double> of_blocks) {
  const Share share(entry);
  prepare_blocks(optimizer,
                 settings_for(entry, settings),
                 share.value,
                 share.gradient,
                 share.slots,
                 of_blocks);
}

void move_share(StateEntry& entry,
                const Optimizer& optimizer,
                const UpdateSettings& settings,
                std::span<const double> sums) {
  if (is_moved(entry)) {
    const Share share(entry);
    UpdateSettings own = settings_for(entry, settings);
    own.sums = sums;
    apply_prepared(optimizer, own, share.value, share.gradient, share.slots);
    entry.round_value();
  }
  entry.parameter->gradient.fill_zero();
}

void move(StateEntry& entry, const Optimizer& optimizer, UpdateSettings settings) {
  if (!is_moved(entry)) return entry.parameter->gradient.fill_zero();
  const Share whole(entry);
  apply(optimizer, settings_for(entry, settings), whole.value, whole.gradient, whole.slots);
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
                     std::span<double> seconds,
                     OptimizerShards* shards) {
  std::vector<double> sums(state.names().size(), 0.0), of_blocks;
  executor.for_each_rank([&](Rank rank) {
    const Timed timed(seconds[rank.index()]);
    if (shards != nullptr) {
      of_blocks = shards->squares_of_blocks();
      return;
    }
    for (const StateEntry& entry : state.entries(rank))
      if (entry.counts && is_moved(entry))
        sums[entry.number] = sum_of_squares(entry.parameter->gradient.as<float>());
  });
  if (shards != nullptr)
    give_sums(state.entries(shards->place()), shards->sums_of_squares(of_blocks), sums);
  group.sum(sums, Label::GradientNorm);
  return gradient_norm(sums, limit, loss_scale);
}

void update(TrainingState& state,
            Executor& executor,
            const Optimizer& optimizer,
            const UpdateSettings& settings,
            std::span<double> seconds,
            const GridPosition& seat,
            OptimizerShards* shards) {
  std::vector<std::vector<double>> sums;
  if (shards != nullptr) sums = shards->sums(optimizer, settings);
  executor.for_each_rank([&](Rank rank) {
    const Timed timed(seconds[rank.index()]);
    std::size_t number = 0;
    for (StateEntry& entry : state.entries(rank)) {
      try {
        if (shards != nullptr)
          move_share(entry,
                     optimizer,
                     settings,
                     sums.empty() ? std::span<const double>() : sums[number++]);
        else
          move(entry, optimizer, settings);
      } catch (const std::exception& cause) {
        throw failure_of(entry, seat, cause);
      }
    }
  });
  if (shards != nullptr) shards->share_values();
}

void zero_gradients(const TrainingState& state) noexcept {
  for_each_entry(state, [](const StateEntry& entry) { entry.parameter->gradient.fill_zero(); });
}

std::string hash_of(const TrainingState& state, ProcessGroup& group, OptimizerShards* shards) {
  std::string mine;
  const auto add = [&](const StateEntry& entry, const Tensor& value) {
    if (entry.replica == Replica{0})
      mine += entry.parameter->name + '\n' + tensor_digest(value) + '\n';
  };
  for_each_entry(state, [&](const StateEntry& entry) {
    if (!entry.is_spread || !entry.master) add(entry, entry.value());
  });
  if (shards != nullptr)
    shards->collect([&](const auto& entry, auto, const Tensor& value) { add(entry, value); }, true);
  std::map<std::string, std::string> digest_of;
  for (const std::string& part : group.gather(mine, Label::WeightsHash)) {
    std::istringstream lines(part);
    for (std::string name; std::getline(lines, name);) std::getline(lines, digest_of[name]);
  }
  return combine_digests(digest_of);
}

}  // namespace millrace
