// Messages in time: a send leaves when its producer ends, a receive is posted, and only what uses
// the message waits. So it takes as long with messages as without, wherever the receives stand.
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/text.hpp"
#include "millrace/scheduler/plan/verify.hpp"
#include "support/naive_replay.hpp"
#include "support/small_programs.hpp"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing_plan::NaiveReplay;
using testing_plan::program;
using testing_plan::straight;

Timeline timed(const Program& program, const Cost& cost) {
  return std::get<Timeline>(simulate(Graph(program), cost));
}

/// When each compute action runs.
std::vector<std::vector<Interval>> compute_times(const Program& program, const Cost& cost) {
  const Timeline run = timed(program, cost);
  std::vector<std::vector<Interval>> result(program.ranks.size());
  for (std::size_t r = 0; r < result.size(); ++r)
    for (std::size_t i = 0; i < program.ranks[r].size(); ++i)
      if (is_compute(program.ranks[r][i].op)) result[r].push_back(run.ranks[r][i]);
  return result;
}

/// Every schedule of the catalogue that these counts have, without pairs.
std::vector<Program> catalogue(int ranks, int micro_batches) {
  std::vector<Program> all;
  for (const ScheduleEntry& entry : schedules()) try {
      all.push_back(
          decouple_pairs(generate(entry.name, {.ranks = ranks, .micro_batches = micro_batches})));
    } catch (const InvalidArgument&) {
      continue;  // it has no meaning with these counts
    }
  return all;
}

/// Plain links, links of their own, links that can be busy.
std::vector<Cost> costs(const Shape& shape) {
  std::vector<Cost> all(3, Cost::of_full_stage(shape, 6, 5, 4, 2));
  const int p = shape.ranks;
  for (int link = 0; link < p * p; ++link) all[1].link_latency.push_back(1 + link * 7 % 5);
  all[2].bytes_per_tick = 2;
  all[2].message_bytes = 10;
  all[2].contention = true;
  return all;
}

TEST(PostedReceives, EverySchedule_TakesTheSameTime) {
  for (const int m : {8, 9})
    for (const Program& compute : catalogue(4, m))
      for (const Cost& cost : costs(compute.shape)) {
        const auto alone = compute_times(compute, cost);
        EXPECT_EQ(compute_times(insert_messages(compute), cost), alone) << compute.name;
        EXPECT_EQ(compute_times(insert_messages_before_use(compute), cost), alone) << compute.name;
      }
}

TEST(PostedReceives, Rank_ContinuesUntilTheMessageIsUsed) {
  // F1 of stage 0 ends at 12 and arrives at 17; meanwhile rank 1 runs B0.
  const Program two = program(straight(2, 2),
                              {"0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
                               "1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1"});
  Cost cost = Cost::of_full_stage(two.shape, 2, 3, 1, 5);
  cost.forward[0] = 6;

  const auto second = timed(two, cost).ranks[1];

  using At = Interval;
  EXPECT_THAT(second,
              ElementsAre(At{0, 11},
                          At{11, 13},
                          At{13, 17},
                          At{13, 17},
                          At{17, 17},
                          At{17, 19},
                          At{19, 23},
                          At{23, 23}));
}

TEST(PostedReceives, EqualTheNaiveReplay) {
  for (const Program& compute : catalogue(4, 8)) {
    if (compute.shape.replicas() > 1) continue;
    for (const Program& each : {insert_messages(compute), insert_messages_before_use(compute)}) {
      const Cost cost = Cost::of_full_stage(each.shape, 6, 5, 4, 2);
      EXPECT_EQ(timed(each, cost).ranks, NaiveReplay(each, cost).run()) << each.name;
    }
  }
}

TEST(PostedReceives, EarlyMovedBeforeUse_EqualLate) {
  for (const Program& compute : catalogue(4, 8)) {
    const Program late = insert_messages_before_use(compute);
    EXPECT_EQ(receive_before_use(insert_messages(compute)), late) << compute.name;
    EXPECT_EQ(receive_before_use(late), late) << compute.name;
    EXPECT_EQ(receive_before_use(compute), compute) << compute.name;
  }
}

TEST(PostedReceives, TheCriticalPathIsAChainWithoutIdleTime) {
  for (const Program& compute : catalogue(4, 8))
    for (const Program& each : {insert_messages(compute), insert_messages_before_use(compute)}) {
      const Graph graph(each);
      const Cost cost = Cost::of_full_stage(each.shape, 6, 5, 4, 2);
      const Timeline run = timed(each, cost);
      const auto interval = [&](Node node) {
        return run.ranks[graph.rank(node).index()][graph.position(node)];
      };
      const std::vector<Node> path = critical_path(graph, cost, run);
      double makespan = 0;
      for (const auto& list : run.ranks) makespan = std::max(makespan, list.back().end);
      EXPECT_EQ(interval(path.back()).end, makespan) << each.name;
      for (std::size_t i = 1; i < path.size(); ++i) {
        const Interval before = interval(path[i - 1]), after = interval(path[i]);
        const bool receives = is_receive(graph.action(path[i]).op);
        const bool travels = graph.rank(path[i - 1]) != graph.rank(path[i]);
        EXPECT_EQ(before.end + (travels ? cost.latency : 0), receives ? after.end : after.start)
            << each.name;
      }
    }
}

/// PyTorch's pass, from its description: ranks in turn run what they can; what a rank sends is put
/// behind its producer there and, in the same breath, at the end of the receiver's list so far.
Program as_pytorch_lowers(const Program& compute) {
  const Shape& shape = compute.shape;
  Program result{shape, {}, compute.name};
  result.ranks.resize(compute.ranks.size());
  std::vector<std::size_t> next(compute.ranks.size(), 0);
  std::set<std::tuple<bool, int, int>> there;  // forward, stage, micro-batch: its input
  for (std::size_t left = compute.size(); left > 0;)
    for (std::size_t r = 0; r < next.size(); ++r) {
      if (next[r] == compute.ranks[r].size()) continue;
      const Action action = compute.ranks[r][next[r]];
      const bool forward = action.op == Op::Forward, backward = gives_input_gradient(action.op);
      const int s = action.stage.value, i = action.micro_batch.value;
      const bool outer = forward ? s == 0 : s == shape.stages() - 1;
      if ((forward || backward) && !outer && there.count({forward, s, i}) == 0) continue;
      result.ranks[r].push_back(action);
      ++next[r];
      --left;
      const int to = s + (forward ? 1 : -1);
      if ((!forward && !backward) || to < 0 || to == shape.stages()) continue;
      there.insert({forward, to, i});
      const auto peer = shape.rank(Replica{0}, Stage{to}).index();
      if (peer == r) continue;
      Action send = action, receive = action;
      send.op = forward ? Op::SendForward : Op::SendBackward;
      receive.op = forward ? Op::RecvForward : Op::RecvBackward;
      receive.stage = Stage{to};
      result.ranks[r].push_back(send);
      result.ranks[peer].push_back(receive);
    }
  return result;
}

TEST(PostedReceives, PyTorchLoweredFile_PredictsItsRun) {
  for (const Program& compute : catalogue(4, 8)) {
    if (compute.shape.replicas() > 1 || compute.shape.slices > 1) continue;
    const Program written = as_pytorch_lowers(compute);
    const ParsedProgram read = read_csv(write_csv(written));
    ASSERT_TRUE(read.program) << compute.name;
    EXPECT_THAT(verify(*read.program, Transport::rendezvous()), IsEmpty()) << compute.name;
    const Cost cost = Cost::of_full_stage(compute.shape, 6, 5, 4, 2);
    EXPECT_EQ(compute_times(*read.program, cost), compute_times(compute, cost)) << compute.name;
  }
}

}  // namespace
}  // namespace millrace
