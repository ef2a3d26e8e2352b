// Broken programs must be named, harmless changes must run, and random programs are judged alike by
// verify, simulate and the naive oracles.
#include <algorithm>
#include <array>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/core/random.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "plan/verify_campaign.hpp"
#include "support/figures.hpp"

namespace millrace {
namespace {

using ::testing::IsEmpty;

/// Compute-only and lowered forms of every schedule of the catalogue at p = 4, m = 8.
std::vector<Program> valid_programs() {
  std::vector<Program> result;
  for (const ScheduleEntry& entry : schedules()) {
    const Program compute = decouple_pairs(generate(entry.name, testing_plan::fitting(entry)));
    result.push_back(compute);
    result.push_back(insert_messages(compute));
  }
  return result;
}

TEST(Verify, IsSilentAboutTheWholeCatalogue) {
  for (const Program& program : valid_programs())
    EXPECT_THAT(verify(program, Transport::rendezvous()), IsEmpty()) << program.name;
}

/// Whether verify names this rule, and nothing that stands before it.
bool names(const Program& program, Rule rule) {
  const auto violations = verify(program);
  return !violations.empty() && violations.front().rule == rule;
}

TEST(Mutation, DroppedOrRepeatedAction_NamesItsRule) {
  for (const Program& program : valid_programs())
    for (std::size_t r = 0; r < program.ranks.size(); ++r)
      for (std::size_t i = 0; i < program.ranks[r].size(); i += 3) {
        const Action action = program.ranks[r][i];
        const auto at = static_cast<std::ptrdiff_t>(i);
        Program less = program, more = program;
        less.ranks[r].erase(less.ranks[r].begin() + at);
        more.ranks[r].insert(more.ranks[r].begin() + at, action);
        const Rule rule = is_compute(action.op) ? Rule::Completeness : Rule::Messages;
        ASSERT_TRUE(names(less, rule)) << program.name << " without " << to_string(action);
        ASSERT_TRUE(names(more, rule)) << program.name << " with twice " << to_string(action);
      }
}

/// Whether a rank runs a W, or the B or I of a unit, before what it follows on the same rank.
bool breaks_a_unit(const Program& program) {
  for (const auto& list : program.ranks)
    for (std::size_t i = 0; i < list.size(); ++i)
      for (std::size_t j = i + 1; j < list.size(); ++j) {
        const Action &one = list[i], &later = list[j];
        if (one.op == Op::BackwardWeight && later.op == Op::BackwardInput &&
            std::tuple(one.stage, one.micro_batch, one.slice) ==
                std::tuple(later.stage, later.micro_batch, later.slice))
          return true;
      }
  return false;
}

TEST(Mutation, SwappedActions_FailExactlyWhenReplayHangs) {
  RandomKey key;
  key.seed = 5;
  std::uint32_t draw = 0;
  int hangs = 0, ends = 0;
  for (const ScheduleEntry& entry : schedules()) {
    const Program program = decouple_pairs(generate(entry.name, testing_plan::fitting(entry)));
    for (int trial = 0; trial < 60; ++trial) {
      Program swapped = program;
      auto& list = swapped.ranks[random_below(key, draw++, 4) % swapped.ranks.size()];
      const auto size = static_cast<std::uint32_t>(list.size());
      const std::uint32_t from = random_below(key, draw++, size);
      // Near swaps often stay valid, far ones hardly ever.
      const std::uint32_t reach = trial % 2 == 0 ? 3 : size;
      std::swap(list[from], list[(from + random_below(key, draw++, reach)) % size]);
      const auto violations = verify(swapped);
      const bool replayed =
          testing_plan::NaiveReplay(swapped, Cost::unit(swapped.shape)).run().has_value();
      ASSERT_EQ(violations.empty(), replayed) << swapped.name << " trial " << trial;
      ++(replayed ? ends : hangs);
      if (replayed) continue;
      const Rule rule = breaks_a_unit(swapped) ? Rule::WeightAfterInput : Rule::Order;
      EXPECT_EQ(violations.front().rule, rule) << swapped.name << " trial " << trial;
    }
  }
  EXPECT_GT(hangs, 200);
  EXPECT_GT(ends, 200);
}

TEST(Mutation, AReceiveAfterItsUseIsNamed) {
  for (const ScheduleEntry& entry : schedules()) {
    const Program program =
        insert_messages(decouple_pairs(generate(entry.name, testing_plan::fitting(entry))));
    for (std::size_t r = 0; r < program.ranks.size(); ++r)
      for (std::size_t i = 0; i < program.ranks[r].size(); ++i) {
        if (!is_receive(program.ranks[r][i].op)) continue;
        Program late = program;
        late.ranks[r].erase(late.ranks[r].begin() + static_cast<std::ptrdiff_t>(i));
        late.ranks[r].push_back(program.ranks[r][i]);
        const auto violations = verify(late);
        ASSERT_EQ(violations.size(), 1U) << program.name;
        ASSERT_EQ(violations[0].rule, Rule::Messages) << program.name;
      }
  }
}

/// Counts of programs that end and that hang, by capacity (0 is a rendezvous).
struct Outcomes {
  std::array<int, 4> ends{}, hangs{};
};

/// Moves a few sends, receives or computes by a few places; compares every transport's proof with
/// an executor of that capacity where the result is still right for unbounded channels.
void judge_shuffled(const Program& program, RandomKey key, Outcomes& outcomes) {
  std::uint32_t draw = 0;
  Program shuffled = program;
  for (std::uint32_t moves = 1 + random_below(key, draw++, 3); moves > 0; --moves) {
    auto& list =
        shuffled
            .ranks[random_below(key, draw++, static_cast<std::uint32_t>(shuffled.ranks.size()))];
    const auto size = static_cast<std::uint32_t>(list.size());
    const std::uint32_t from = random_below(key, draw++, size);
    const std::uint32_t to = std::min(size - 1, from + random_below(key, draw++, 6));
    std::rotate(list.begin() + from, list.begin() + from + 1, list.begin() + to + 1);
  }
  if (!verify(shuffled).empty()) return;
  for (std::size_t capacity = 0; capacity < outcomes.ends.size(); ++capacity) {
    const auto transport =
        capacity == 0 ? Transport::rendezvous() : Transport::bounded(static_cast<int>(capacity));
    const auto violations = verify(shuffled, transport);
    const bool ends = testing_plan::ends_with_capacity(shuffled, capacity);
    ASSERT_EQ(violations.empty(), ends) << shuffled.name << " capacity " << capacity;
    ++(ends ? outcomes.ends : outcomes.hangs)[capacity];
    if (!ends) {
      ASSERT_EQ(violations.front().rule, Rule::Deadlock) << shuffled.name;
    }
  }
}

TEST(Mutation, ShuffledMessages_EndExactlyWhenProved) {
  Outcomes outcomes;
  for (const ScheduleEntry& entry : schedules())
    for (const int micro_batches : {4, 8}) {
      ScheduleOptions options;
      options.ranks = 4;
      options.micro_batches = micro_batches;
      Program compute;
      try {
        compute = decouple_pairs(generate(entry.name, options));
      } catch (const InvalidArgument&) {
        continue;  // the schedule has no meaning with 4 micro-batches
      }
      if (compute.shape.replicas() > 1) continue;  // the executor keys messages without replica
      for (const Program& program : {insert_messages(compute), insert_messages_before_use(compute)})
        for (std::uint64_t seed = 0; seed < 60; ++seed) {
          judge_shuffled(program, {.seed = 6, .step = seed}, outcomes);
          if (HasFatalFailure()) return;
        }
    }
  for (const int hung : {outcomes.hangs[0], outcomes.hangs[1], outcomes.hangs[2]})
    EXPECT_GT(hung, 50);
  for (const int ended : outcomes.ends) EXPECT_GT(ended, 50);
}

/// The declared form of capacities, for verify.
Transport declared(const std::vector<ChannelCapacity>& capacities) {
  Transport transport = Transport::bounded(1);
  for (const ChannelCapacity& each : capacities)
    transport.channels.push_back({each.source, each.destination, each.direction, each.minimal});
  return transport;
}

TEST(Capacity, MinimalDepthsSufficeTogetherAndNoneCanShrink) {
  for (const ScheduleEntry& entry : schedules()) {
    const Program program = insert_messages_before_use(
        decouple_pairs(generate(entry.name, testing_plan::fitting(entry))));
    const auto capacities = channel_capacities(program);
    Transport transport = declared(capacities);
    EXPECT_THAT(verify(program, transport), IsEmpty()) << entry.name;
    for (ChannelDepth& channel : transport.channels) {
      if (channel.depth == 1) continue;
      --channel.depth;
      const auto violations = verify(program, transport);
      ASSERT_EQ(violations.size(), 1U) << entry.name;
      EXPECT_EQ(violations[0].rule, Rule::Capacity);
      ++channel.depth;
    }
  }
}

TEST(Capacity, OfLoopedBreadthFirstIsMicroBatchesPerRank) {
  // The fact: a uniform depth of ceil(m / p) is exactly what the looped breadth-first order needs.
  for (const int p : {2, 3, 4})
    for (const int m : {p, 2 * p, 3 * p}) {
      ScheduleOptions options;
      options.ranks = p;
      options.micro_batches = m;
      EXPECT_EQ(uniform_capacity(generate("bfs", options)), (m + p - 1) / p)
          << "p=" << p << " m=" << m;
    }
}

TEST(RandomPrograms, VerifySimulateOracles_Agree) {
  int silent = 0;
  for (std::uint64_t seed = 0; seed < 20000; ++seed) {
    RandomKey key;
    key.seed = seed;
    std::vector<std::uint8_t> bytes;
    for (std::uint32_t i = 0; i < 160; ++i)
      bytes.push_back(static_cast<std::uint8_t>(random_word(key, i)));
    ASSERT_EQ(testing_plan::disagreement(bytes, silent), "") << "seed " << seed;
  }
  EXPECT_GT(silent, 1000);
}

}  // namespace
}  // namespace millrace
