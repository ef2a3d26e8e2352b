// What a step does with the store once the gradients are there: one norm, one update, one hash.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "millrace/scheduler/run/grid.hpp"
#include "millrace/training/optimizer.hpp"
#include "millrace/training/state.hpp"

namespace millrace {

class OptimizerShards;

/// Calls `visit` with one copy of every parameter hosted here, by name, and gives the other copies
/// the gradients that it left.
void visit_gradients(TrainingState& state,
                     const std::function<void(std::span<Parameter* const>)>& visit);

/// Takes the loss scale out of every gradient here. Cost: one pass over them.
void unscale_gradients(const TrainingState& state, double loss_scale);

/// One norm over all stages of all members, of gradients that still have the loss scale in them;
/// each rank adds up its own parameters, with `shards` its share of them. Frozen ones are not
/// looked at. `seconds`, by rank, grows by the time that its sums took.
[[nodiscard]] GradientNorm norm_of(const TrainingState& state,
                                   Executor& executor,
                                   ProcessGroup& group,
                                   std::optional<double> limit,
                                   double loss_scale,
                                   std::span<double> seconds,
                                   OptimizerShards* shards = nullptr);

/// One optimizer step on every stage, frozen parameters left out; then the gradients are zero.
/// What differs between parameters is set in `settings` here. `seconds` as in norm_of. `shards`:
/// where what the optimizer keeps is spread, and every copy moves its share. Throws StepError that
/// names the seat's rank and copy, stage and parameter.
void update(TrainingState& state,
            Executor& executor,
            const Optimizer& optimizer,
            const UpdateSettings& settings,
            std::span<double> seconds,
            const GridPosition& seat,
            OptimizerShards* shards = nullptr);

/// One parameter along its gradient, which is zero then; nothing but that where it is frozen.
void move(StateEntry& entry, const Optimizer& optimizer, UpdateSettings settings);

/// Whether `move` changes its value: trained, and not frozen.
[[nodiscard]] bool is_moved(const StateEntry& entry);

/// Of a share: the optimizer's sums over each of its blocks; and its part of `move`, with the sums
/// over the whole parameter.
void prepare(StateEntry& entry,
             const Optimizer& optimizer,
             const UpdateSettings& settings,
             std::span<double> of_blocks);
void move_share(StateEntry& entry,
                const Optimizer& optimizer,
                const UpdateSettings& settings,
                std::span<const double> sums);

void zero_gradients(const TrainingState& state) noexcept;

/// combine_digests over the parameters of all members.
[[nodiscard]] std::string hash_of(const TrainingState& state,
                                  ProcessGroup& group,
                                  OptimizerShards* shards = nullptr);

}  // namespace millrace
