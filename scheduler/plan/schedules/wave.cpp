// The wave pipeline as a policy of the list scheduler: backwards first, then the lowest micro-batch
// and stage; a forward starts only when the rank also has room for the deeper chunks of its
// micro-batch, which keeps the peak at p micro-batches and cannot get stuck.
#include "plan/schedules/wave.hpp"

#include "millrace/core/error.hpp"
#include "plan/schedules/list_order.hpp"

namespace millrace::generators {

Program wave(const ScheduleOptions& options) {
  const int chunks = 2 * options.waves.value_or(1);
  const Shape shape{.ranks = options.ranks,
                    .micro_batches = options.micro_batches,
                    .placement = Placement::zigzag(options.ranks, chunks)};
  Cost cost =
      Cost::of_full_stage(shape, options.forward, options.input, options.weight, options.latency);
  // A chunk's activations count as one, whatever they weigh.
  cost.memory_forward.assign(cost.memory_forward.size(), 1);
  cost.memory_weight.assign(cost.memory_weight.size(), -1);

  plan::Work work(options.stop);
  const plan::Job job(plan::everything(shape, true), cost, &work);
  std::vector<double> priority(job.size()), room(job.size());
  const double last = static_cast<double>(job.size());
  for (Node node = 0; node < job.size(); ++node) {
    const Action& action = job.action(node);
    const bool forward = action.op == Op::Forward;
    priority[node] = (forward ? last : 0) + double{1} * action.micro_batch.value * shape.stages() +
                     action.stage.value;
    const int chunk = action.stage.value / options.ranks;
    if (forward) room[node] = chunks - 1 - chunk;
  }
  const auto order = plan::list_order(
      job, {priority, room, double{1} * chunks * options.ranks, WeightRule::Filler});
  require(order.has_value(), "the wave schedule found no op to run: its memory cap is wrong");
  return job.program(*order);
}

}  // namespace millrace::generators
