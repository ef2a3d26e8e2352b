// Broken programs must be named, harmless changes must run, and random programs are judged alike by
// verify, simulate and the naive oracles.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/random.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "plan/verify_campaign.hpp"

namespace millrace {
namespace {

using ::testing::IsEmpty;

/// Compute-only and lowered forms of every schedule of the catalogue at p = 4, m = 8.
std::vector<Program> valid_programs() {
  std::vector<Program> result;
  for (const ScheduleEntry& entry : schedules()) {
    const Program compute = decouple_pairs(entry.generate({}));
    result.push_back(compute);
    result.push_back(insert_messages(compute));
  }
  return result;
}

TEST(Verify, IsSilentAboutTheWholeCatalogue) {
  for (const Program& program : valid_programs())
    EXPECT_THAT(verify(program, Transport::rendezvous()), IsEmpty()) << program.name;
}

TEST(Mutation, DroppingOrRepeatingAnyActionIsNamed) {
  for (const Program& program : valid_programs())
    for (std::size_t r = 0; r < program.ranks.size(); ++r)
      for (std::size_t i = 0; i < program.ranks[r].size(); i += 3) {
        const auto at = static_cast<std::ptrdiff_t>(i);
        Program less = program, more = program;
        less.ranks[r].erase(less.ranks[r].begin() + at);
        more.ranks[r].insert(more.ranks[r].begin() + at, program.ranks[r][i]);
        ASSERT_FALSE(verify(less).empty()) << program.name << " without " << i << " of " << r;
        ASSERT_FALSE(verify(more).empty()) << program.name << " with twice " << i << " of " << r;
      }
}

TEST(Mutation, SwappingTwoActionsIsNamedOrRuns) {
  RandomKey key;
  key.seed = 5;
  std::uint32_t draw = 0;
  for (const Program& program : valid_programs())
    for (int trial = 0; trial < 20; ++trial) {
      Program swapped = program;
      auto& list = swapped.ranks[random_below(key, draw++, 4) % swapped.ranks.size()];
      const auto size = static_cast<std::uint32_t>(list.size());
      const std::uint32_t from = random_below(key, draw++, size);
      std::swap(list[from], list[random_below(key, draw++, size)]);
      const auto result = simulate(Graph(swapped), Cost::unit(swapped.shape));
      EXPECT_TRUE(!verify(swapped).empty() || std::holds_alternative<Timeline>(result));
    }
}

TEST(Mutation, AReceiveAfterItsUseIsNamed) {
  const Program program = insert_messages(generate("1f1b", {}));
  for (std::size_t r = 0; r < program.ranks.size(); ++r)
    for (std::size_t i = 0; i < program.ranks[r].size(); ++i) {
      if (!is_receive(program.ranks[r][i].op)) continue;
      Program late = program;
      late.ranks[r].erase(late.ranks[r].begin() + static_cast<std::ptrdiff_t>(i));
      late.ranks[r].push_back(program.ranks[r][i]);
      const auto violations = verify(late);
      ASSERT_EQ(violations.size(), 1U);
      EXPECT_EQ(violations[0].rule, Rule::Messages);
    }
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
    const Program program = insert_messages_before_use(decouple_pairs(entry.generate({})));
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

TEST(RandomPrograms, AreJudgedAlikeByVerifySimulateAndTheOracles) {
  int silent = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    RandomKey key;
    key.seed = seed;
    std::vector<std::uint8_t> bytes;
    for (std::uint32_t i = 0; i < 160; ++i)
      bytes.push_back(static_cast<std::uint8_t>(random_word(key, i)));
    ASSERT_EQ(testing::disagreement(bytes, silent), "") << "seed " << seed;
  }
  EXPECT_GT(silent, 20);
}

}  // namespace
}  // namespace millrace
