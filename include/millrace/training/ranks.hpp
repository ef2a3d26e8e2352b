// Trainers of one rank per process: their parts, the depths of their channels, and the build fields
// that ranks compare.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "millrace/core/ids.hpp"
#include "millrace/training/trainer.hpp"
#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/listener.hpp"

namespace millrace {

/// Builds the stages of the position's place, and nothing else, with executors of that place. A
/// collective of the group, since what is tied may live on several ranks.
/// Throws InvalidArgument when the program has not as many ranks as the grid's pipelines have
/// places. The position's endpoint and `group`, of all its processes, must outlive the trainer. A
/// trainer made of the parts compares plan and settings with those of all ranks when it is made,
/// and the data in fit() and evaluate(): what differs is a Mismatch on every rank, which names it.
///
///     ProcessGroup group(*endpoint);
///     Trainer trainer(rank_parts(model, plan, options, *endpoint, group));
///
/// With several copies of the pipeline (data parallelism) every process is given the same
/// mini-batches, of grid.data() * accumulate * m micro-batches: each copy runs its part of them,
/// the first copy the first, and REDUCE_GRAD adds their gradients up. Losses, norm, verdict and
/// update are those of all copies.
[[nodiscard]] TrainerParts rank_parts(const ModelSpec& model,
                                      const Plan& plan,
                                      const TrainerOptions& options,
                                      const GridPosition& position,
                                      ProcessGroup& group);

/// As above with custom stages: `bodies` are those that the program places on this rank, replica
/// after replica, in ascending stage order.
[[nodiscard]] TrainerParts rank_parts(const Plan& plan,
                                      Bodies bodies,
                                      const TrainerOptions& options,
                                      const GridPosition& position,
                                      ProcessGroup& group);

/// The same for one data-parallel replica: every process of the endpoint's world is a pipeline
/// rank.
[[nodiscard]] inline TrainerParts rank_parts(const ModelSpec& model,
                                             const Plan& plan,
                                             const TrainerOptions& options,
                                             Endpoint& endpoint,
                                             ProcessGroup& group) {
  return rank_parts(model, plan, options, GridPosition(endpoint), group);
}

[[nodiscard]] inline TrainerParts rank_parts(const Plan& plan,
                                             Bodies bodies,
                                             const TrainerOptions& options,
                                             Endpoint& endpoint,
                                             ProcessGroup& group) {
  return rank_parts(plan, std::move(bodies), options, GridPosition(endpoint), group);
}

/// Throws InvalidParameter unless so many copies of the pipeline can add up in the options' order,
/// naming the numbers of copies next to it that can.
void check_copies(const StepOptions& options, const Grid& grid);

/// The depth that each channel of `program` needs, in training and in evaluation, so that no send
/// ever finds it full, however fast or slow the ranks are: the most messages that can lie there,
/// exactly. What endpoints are told as their depths, which bounds what a rank has to hold for
/// slower ones. `answered` where what the two ranks send each other tells the sender enough.
/// (channel_capacities answers another question: how much room is enough when sends may wait.)
/// Collectives are not in it. Throws InvalidArgument when the program deadlocks. Cost: O(actions x
/// ranks).
[[nodiscard]] std::vector<ChannelDepth> channel_depths(const Program& program);

/// The same of what rank_parts makes of these: where a stage gives tensors to others than the next,
/// or several to one, there are more messages than the program alone tells. With the tensors that
/// the messages bring, where the pipeline has so many copies, unless the model takes sequences of
/// any length; a receiver keeps a tensor until the unit's last pass there at the latest. Throws
/// what rank_parts throws of a cut that does not fit.
[[nodiscard]] std::vector<ChannelDepth> channel_depths(const ModelSpec& model,
                                                       const Plan& plan,
                                                       const TrainerOptions& options,
                                                       int replicas = 1);

/// Those of every copy of a pipeline on the grid, whose places one copy's depths are told by.
[[nodiscard]] std::vector<ChannelDepth> on_grid(const std::vector<ChannelDepth>& of_one_copy,
                                                const Grid& grid);

/// Library version, processor, compiled code and what multiplies matrices: the fields that ranks of
/// any work compare when they meet, before those of their own. See JoinOptions::fields.
/// Thread-safe.
[[nodiscard]] HelloFields build_fields();

}  // namespace millrace
