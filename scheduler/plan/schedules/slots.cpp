// Chimera by its slot formula. No two ops of a rank share a slot: forwards and backwards of the two
// directions differ in parity or in order, so there is no tie to break.
#include <algorithm>
#include <string>
#include <utility>

#include "plan/model/work.hpp"
#include "plan/schedules/families.hpp"

namespace millrace::generators {

namespace {

struct Slotted {
  std::int64_t slot;
  Action action;
};

/// Forward and backward of one micro-batch on every stage of its replica.
void add_micro_batch(std::vector<std::vector<Slotted>>& ranks,
                     const Shape& shape,
                     MicroBatch micro_batch,
                     std::int64_t first_slot) {
  const Replica replica = shape.replica(micro_batch);
  for (int stage = 0; stage < shape.stages(); ++stage) {
    Action action{.replica_number = static_cast<std::uint8_t>(replica.value),
                  .stage = Stage{stage},
                  .micro_batch = micro_batch,
                  .slice = {}};
    auto& list = ranks[shape.rank(replica, Stage{stage}).index()];
    list.push_back({first_slot + stage, action});
    action.op = Op::Backward;
    list.push_back({first_slot + 2 * shape.ranks - 1 - stage, action});
  }
}

std::vector<Action> by_slot(std::vector<Slotted> list) {
  std::ranges::sort(list, {}, &Slotted::slot);
  std::vector<Action> actions;
  actions.reserve(list.size());
  for (const Slotted& slotted : list) actions.push_back(slotted.action);
  return actions;
}

}  // namespace

Program chimera(const Request& options) {
  const int ranks = options.ranks, half = ranks / 2;
  require_even_ranks(options);
  require_full_rounds("chimera", options);

  Program program{.shape = {.ranks = ranks,
                            .micro_batches = options.micro_batches,
                            .placement = Placement::mirrored(ranks),
                            .replica_of = {}},
                  .ranks = {},
                  .name = {}};
  for (int m = 0; m < options.micro_batches; ++m)
    program.shape.replica_of.emplace_back(m % ranks < half ? 0 : 1);
  std::vector<std::vector<Slotted>> lists(static_cast<std::size_t>(ranks));
  plan::Work work(options.stop);
  for (int m = 0; m < options.micro_batches; ++m) {
    const std::int64_t unit = m / ranks;
    const int place = m % ranks % half;
    work.spend(2 * lists.size());
    add_micro_batch(lists, program.shape, MicroBatch{m}, 2 * ranks * unit + 2 * place);
  }
  for (auto& list : lists) program.ranks.push_back(by_slot(std::move(list)));
  return program;
}

}  // namespace millrace::generators
