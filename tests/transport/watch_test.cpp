// What watching is made of: connections that never were and those that ended, who watches whom and
// how often it sends heartbeats, and what is usual.
#include <algorithm>
#include <cmath>
#include <set>

#include <gmock/gmock.h>

#include "millrace/core/random.hpp"
#include "transport/liveness/heartbeat_interval.hpp"
#include "transport/liveness/progress_slot.hpp"
#include "transport/zeromq/line.hpp"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using zeromq::ConnectionMonitor;

constexpr ConnectionMonitor::Clock::time_point kStart{1000s};
constexpr auto kGrace = 300ms;
constexpr auto kPatience = 20s;

TEST(ConnectionMonitor, UnopenedConnection_HasNotEnded) {
  ConnectionMonitor line(kStart);
  EXPECT_FALSE(line.lost(kStart + 1h, kGrace, kPatience));
  for (int i = 0; i < 5; ++i) {  // hand-shakes that took too long for the other side
    line.connected();
    line.ended(kStart + 5s * i);
    line.retried(kStart + 5s * i);
  }
  EXPECT_FALSE(line.lost(kStart + 1h, kGrace, kPatience));

  line.shaken(kStart + 25s);
  EXPECT_TRUE(line.up());
  EXPECT_EQ(line.took(), 25s);
}

TEST(ConnectionMonitor, NoListener_IsLostAfterTheGrace) {
  for (const bool was_up : {false, true}) {
    ConnectionMonitor line(kStart);
    if (was_up) line.shaken(kStart);
    if (was_up) line.ended(kStart);
    if (was_up) line.retried(kStart);  // the first attempt after an end is no refusal yet
    line.retried(kStart);
    EXPECT_FALSE(line.up());
    EXPECT_FALSE(line.lost(kStart + kGrace, kGrace, kPatience));
    EXPECT_TRUE(line.lost(kStart + kGrace + 1ms, kGrace, kPatience));
  }
}

TEST(ConnectionMonitor, EndedConnection_MayReturnWhereListened) {
  ConnectionMonitor line(kStart);
  line.shaken(kStart);
  line.ended(kStart);
  line.retried(kStart);
  line.connected();
  EXPECT_FALSE(line.lost(kStart + kPatience, kGrace, kPatience));
  EXPECT_TRUE(line.lost(kStart + kPatience + 1ms, kGrace, kPatience));
  line.shaken(kStart + kPatience);
  EXPECT_FALSE(line.lost(kStart + 1h, kGrace, kPatience));
}

TEST(Circle, WatchedRank_WatchesBack) {
  for (int world = 1; world <= 300; ++world) {
    std::set<std::pair<int, int>> pairs;
    for (int i = 0; i < world; ++i)
      for (const Rank peer : watched_by(Rank{i}, world)) {
        ASSERT_NE(peer.value, i);
        ASSERT_TRUE(pairs.emplace(i, peer.value).second) << "twice";
      }
    for (const auto& [a, b] : pairs) ASSERT_TRUE(pairs.contains({b, a})) << world;
    const auto most = static_cast<std::size_t>(
        world <= kSmallWorld ? world - 1 : 2 * std::ceil(std::log2(world)));
    ASSERT_LE(pairs.size(), static_cast<std::size_t>(world) * most);
    if (world <= kSmallWorld) {
      ASSERT_EQ(watched_by(Rank{0}, world).size(), most);
    }
    std::set<int> reported = {0};  // what one finds out, passed on
    for (int round = 0; round < 9; ++round)
      for (const int rank : std::set<int>(reported))
        for (const Rank peer : watched_by(Rank{rank}, world)) reported.insert(peer.value);
    ASSERT_EQ(reported.size(), static_cast<std::size_t>(world));
  }
}

TEST(HeartbeatInterval, SeveralHeartbeats_FitTheTimeout) {
  for (const int world : {1, 2, 9, 10, 48, 128, 4096})
    for (const auto silence : {HeartbeatInterval::Duration(1s), HeartbeatInterval::Duration(10s)}) {
      const HeartbeatInterval heartbeat_interval(world, 100ms, silence);
      const int groups =
          std::max(1, (world + HeartbeatInterval::kTogether - 2) / HeartbeatInterval::kTogether);
      for (const auto unchanged :
           {HeartbeatInterval::Duration(0s), HeartbeatInterval::Duration(1h)})
        EXPECT_LE(4 * groups * heartbeat_interval.interval(unchanged), heartbeat_interval.timeout())
            << world;
      EXPECT_GE(heartbeat_interval.timeout(), silence);
    }
  const HeartbeatInterval few(4, 100ms, 10s);
  EXPECT_EQ(few.interval(HeartbeatInterval::kSettled), 100ms);
  EXPECT_EQ(few.interval(1001ms), 1s);
  EXPECT_EQ(few.timeout(), 10s);
}

TEST(Durations, TellWhatNinetyNineOfAHundredDidNotExceed) {
  const RandomKey key{.seed = 5, .purpose = Purpose::Test};
  for (std::uint32_t shape = 0; shape < 4; ++shape) {
    Durations durations;
    std::vector<std::int64_t> all;
    for (std::uint32_t i = 0; i < 5000; ++i) {
      // Uniform, many orders of magnitude, growing, and mostly alike.
      const std::int64_t drawn = 1'000'000 + random_below(key, 5000 * shape + i, 1'000'000'000);
      all.push_back(shape == 0   ? drawn
                    : shape == 1 ? std::int64_t{1} << (10 + drawn % 31)
                    : shape == 2 ? 5000 * (i + 1)
                                 : (drawn % 80 == 0 ? drawn : 2'000'000));
      durations.add(std::chrono::nanoseconds(all.back()));
      if (i + 1 < 100) {
        ASSERT_EQ(durations.p99(), 0ns);
        continue;
      }
      if (i % 97 != 0) continue;
      std::vector<std::int64_t> sorted = all;
      std::sort(sorted.begin(), sorted.end());
      const auto exact = static_cast<double>(sorted[sorted.size() - 1 - sorted.size() / 100]);
      const auto said = static_cast<double>(durations.p99().count());
      ASSERT_GE(said, exact) << shape << " after " << i;
      ASSERT_LE(said, 1.126 * exact) << shape << " after " << i;
    }
    EXPECT_EQ(durations.longest().count(), *std::max_element(all.begin(), all.end()));
  }
}

TEST(Durations, OfNoTimeAndOfAWeekAreNoTrouble) {
  Durations durations;
  for (int i = 0; i < 200; ++i) durations.add(i < 150 ? -1ns : std::chrono::nanoseconds(168h));
  EXPECT_EQ(durations.p99(), std::chrono::nanoseconds(168h));
}

}  // namespace
}  // namespace millrace
