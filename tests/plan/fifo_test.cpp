// verify with a transport without tags, against a replay with one queue per ordered pair of ranks.
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <tuple>
#include <utility>

#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/verify.hpp"
#include "support/small_programs.hpp"

namespace millrace {
namespace {

/// What arrives somewhere: its direction, stage, micro-batch, slice and replica.
using Message = std::tuple<bool, int, int, int, int>;

/// The message of a send or receive of a chain, and the ranks that it goes from and to.
struct Route {
  Rank from, to;
  Message message;
};

Route route_of(const Shape& shape, const Action& action) {
  const bool forward = action.op == Op::SendForward || action.op == Op::RecvForward;
  const int step = forward ? 1 : -1;
  const Stage source{action.stage.value - (is_send(action.op) ? 0 : step)};
  const Stage target{source.value + step};
  return {shape.rank(action.replica(), source),
          shape.rank(action.replica(), target),
          {forward,
           target.value,
           action.micro_batch.value,
           action.slice.value,
           action.replica().value}};
}

/// Whether every receive gets its own message, when all ranks run their lists. Requires that they
/// end when messages have tags.
bool each_gets_its_own(const Program& program) {
  std::map<std::pair<int, int>, std::deque<Message>> queues;
  std::vector<std::size_t> next(program.ranks.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t r = 0; r < next.size(); ++r)
      for (; next[r] < program.ranks[r].size(); ++next[r], moved = true) {
        const Action& action = program.ranks[r][next[r]];
        if (!is_send(action.op) && !is_receive(action.op)) continue;
        const Route route = route_of(program.shape, action);
        auto& queue = queues[{route.from.value, route.to.value}];
        if (is_send(action.op)) {
          queue.push_back(route.message);
          continue;
        }
        if (queue.empty()) break;
        if (queue.front() != route.message) return false;
        queue.pop_front();
      }
  }
  for (std::size_t r = 0; r < next.size(); ++r)
    if (next[r] < program.ranks[r].size()) return false;
  return true;
}

/// Programs by what verify says of them, which the replay has to say too.
struct Counts {
  int ordered = 0, swapped = 0;

  void check(const Program& program) {
    if (!verify(program).empty()) return;
    const auto violations = verify(program, Transport::fifo());
    const bool own = each_gets_its_own(program);
    EXPECT_EQ(violations.empty(), own) << program.name;
    ++(own ? ordered : swapped);
    if (own) return;
    EXPECT_EQ(violations.front().rule, Rule::Messages);
    EXPECT_EQ(violations.front().others.size(), 1U);
  }
};

/// Swaps neighbours of the lists, and keeps what is right on a transport with tags.
void expect_swaps_judged(Program program, std::mt19937& random, Counts& counts) {
  for (int swap = 0; swap < 12; ++swap) {
    auto& list = program.ranks[random() % program.ranks.size()];
    if (list.size() < 2) continue;
    const std::size_t at = random() % (list.size() - 1);
    if (list[at].with_next || list[at + 1].with_next || (at > 0 && list[at - 1].with_next))
      continue;
    std::swap(list[at], list[at + 1]);
    if (verify(program).empty())
      counts.check(program);
    else
      std::swap(list[at], list[at + 1]);
  }
}

TEST(FifoTransport, WholeCatalogue_AgreesWithReplay) {
  std::mt19937 random(7);
  Counts early, late, swapped;
  for (const ScheduleEntry& entry : schedules())
    for (const int p : {1, 2, 3, 4, 6})
      for (const int m : {1, 3, 8, 12}) {
        ScheduleOptions options;
        options.ranks = p;
        options.micro_batches = m;
        std::optional<Program> program;
        try {
          program = insert_reductions(generate(entry.name, options));
        } catch (const InvalidArgument&) {
          continue;  // the schedule has no meaning for this shape
        }
        early.check(insert_messages(*program));
        late.check(insert_messages_before_use(*program));
        expect_swaps_judged(insert_messages(*program), random, swapped);
        expect_swaps_judged(insert_messages_before_use(*program), random, swapped);
      }
  EXPECT_GT(early.ordered, 400);
  EXPECT_EQ(early.swapped, 0) << "insert_messages is meant to keep the order of each pair of ranks";
  EXPECT_GT(late.ordered, 300);
  EXPECT_GT(late.swapped, 60);
  EXPECT_GT(swapped.ordered, 1000);
  EXPECT_GT(swapped.swapped, 300);
}

TEST(FifoTransport, MessagesBeforeUse_SwapBothDirections) {
  for (const char* name : {"zb-v", "v-half", "dualpipe-v"}) {
    ScheduleOptions options;
    options.ranks = 4;
    options.micro_batches = 8;
    const Program program = insert_messages_before_use(generate(name, options));

    EXPECT_TRUE(verify(program).empty()) << name;
    EXPECT_FALSE(verify(program, Transport::fifo()).empty()) << name;
  }
}

}  // namespace
}  // namespace millrace
