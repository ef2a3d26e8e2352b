// Who is to blame when nothing moves: the slot a rank writes, the monitor that follows the waits,
// and the limits that stretch.
#include <filesystem>
#include <fstream>
#include <thread>

#include <gmock/gmock.h>

#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/private_directory.hpp"
#include "millrace/transport/zeromq.hpp"
#include "transport/conformance.hpp"
#include "transport/liveness/monitor.hpp"
#include "transport/liveness/progress_slot.hpp"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing_transport::Endpoints;
using testing_transport::soon;

constexpr LivenessMonitor::Clock::time_point kStart{1000s};

Activity works(int stage, int micro_batch, std::chrono::nanoseconds longest = {}) {
  Activity activity;
  activity.doing = Doing::Works;
  activity.of_unit = true;
  activity.what = {'F'};
  activity.tag = {7, Direction::Forward, {}, Stage{stage}, MicroBatch{micro_batch}, {}};
  activity.count = 1;
  activity.since = kStart;
  activity.longest = longest;
  return activity;
}

Activity waits(int from, Direction direction, int stage, int micro_batch) {
  Activity activity = works(stage, micro_batch);
  activity.doing = Doing::Waits;
  activity.tag.direction = direction;
  activity.peer = Rank{from};
  return activity;
}

/// Rank 3 waits for 2, which waits for 1, which is in F; rank 0 waits for 1 too.
LivenessMonitor four_ranks() {
  LivenessMonitor monitor(Rank{0}, 4, kStart);
  for (const int rank : {1, 2, 3}) monitor.heard(Rank{rank}, kStart);
  monitor.note(Rank{0}, waits(1, Direction::Backward, 0, 0), kStart);
  monitor.note(Rank{1}, works(1, 3), kStart);
  monitor.note(Rank{2}, waits(1, Direction::Forward, 2, 3), kStart);
  monitor.note(Rank{3}, waits(2, Direction::Forward, 3, 3), kStart);
  return monitor;
}

TEST(HangReport, FollowsTheWaitsToTheRankThatWorks) {
  const LivenessMonitor monitor = four_ranks();

  for (const int from : {0, 1, 2, 3}) EXPECT_EQ(monitor.end_of_chain(Rank{from}), Rank{1});
  const std::string text = monitor.report(Rank{1}, kStart + 2s);
  EXPECT_THAT(text,
              HasSubstr("everyone waits for rank 1: F of stage 1, micro-batch 3 of step 7, since "
                        "2.0 s"));
  EXPECT_THAT(text,
              HasSubstr("\n  rank 3 waits for activation for stage 3, micro-batch 3 of step 7 "
                        "from rank 2, since 2.0 s, last heard 2.0 s ago (rank 3 <- 2 <- 1)"));
}

TEST(HangReport, DataParallelReplicas_AreNamedByRank) {
  for (const auto& [replicas, pipeline] :
       {std::pair{256, 1}, std::pair{256, 2}, std::pair{128, 2}}) {
    const int world = replicas * pipeline;
    LivenessMonitor monitor(Rank{0}, world, kStart);
    ProgressSlot slot("");
    slot.begin(activity_of({.what = {}, .of_unit = false, .step = 7, .pipeline = pipeline}));
    slot.begin({.doing = Doing::Waits, .peer = Rank{world - 1}});
    monitor.note(Rank{0}, slot.now(), kStart);
    monitor.note(Rank{world - 1}, works(pipeline - 1, 3), kStart);

    const std::string text = monitor.report(Rank{world - 1}, kStart + 2s);
    const std::string last = "rank " + std::to_string(world - 1);
    const std::string action = "F of stage " + std::to_string(pipeline - 1) +
                               ", micro-batch 3 of step 7 (data-parallel replica " +
                               std::to_string(replicas - 1) + "), since 2.0 s";
    EXPECT_THAT(text, HasSubstr("everyone waits for " + last + ": " + action));
    EXPECT_THAT(text, HasSubstr("from " + last + " (data-parallel replica 0), since "));
    EXPECT_THAT(text, HasSubstr("\n  " + last + " is in " + action));
  }
}

TEST(HangReport, EndsWhereWaitsGoInACircle) {
  LivenessMonitor monitor(Rank{0}, 2, kStart);
  monitor.note(Rank{0}, waits(1, Direction::Forward, 0, 0), kStart);
  monitor.note(Rank{1}, waits(0, Direction::Forward, 1, 0), kStart);

  EXPECT_EQ(monitor.end_of_chain(Rank{0}), Rank{0});
  EXPECT_FALSE(monitor.hanging(kStart + 1h, 1s));
}

TEST(HangReport, SeveralSilentRanks_NameTheAwaitedOne) {
  LivenessMonitor monitor = four_ranks();
  monitor.heard(Rank{3}, kStart + 5s);

  EXPECT_EQ(monitor.silent(kStart + 5s, 2s), Rank{1});
  monitor.heard(Rank{1}, kStart + 5s);
  EXPECT_EQ(monitor.silent(kStart + 5s, 2s), Rank{2});
  monitor.heard(Rank{2}, kStart + 5s);
  EXPECT_FALSE(monitor.silent(kStart + 5s, 2s));
}

TEST(HangReport, IsolatedRank_WaitsTwiceAsLong) {
  LivenessMonitor monitor = four_ranks();
  for (const int rank : {1, 2, 3}) monitor.heard(Rank{rank}, kStart);

  EXPECT_FALSE(monitor.silent(kStart + 3s, 2s));
  EXPECT_EQ(monitor.silent(kStart + 5s, 2s), Rank{1});  // no rank did
  monitor.heard(Rank{2}, kStart + 3s);
  EXPECT_EQ(monitor.silent(kStart + 3s, 2s), Rank{1});
}

TEST(HangReport, TwoRanks_NameEachOther) {
  LivenessMonitor monitor(Rank{0}, 3, kStart);
  for (const int rank : {1, 2}) monitor.heard(Rank{rank}, kStart);
  monitor.left(Rank{2});

  EXPECT_EQ(monitor.silent(kStart + 3s, 2s), Rank{1});
}

TEST(HangReport, ConnectingRank_IsNotSilent) {
  LivenessMonitor monitor(Rank{0}, 3, kStart);
  monitor.excuse(Rank{2});
  EXPECT_EQ(monitor.silent(kStart + 3s, 2s), Rank{1});
  monitor.progressed(kStart + 3s);
  EXPECT_FALSE(monitor.silent(kStart + 5s, 2s));

  monitor.heard(Rank{1}, kStart + 5s);
  monitor.progressed(kStart + 8s);
  EXPECT_EQ(monitor.silent(kStart + 8s, 2s), Rank{1});  // once heard, it is to be heard again
  EXPECT_THAT(monitor.report(Rank{1}, kStart + 8s), HasSubstr("rank 2 is not watched from here"));
  monitor.heard(Rank{1}, kStart + 8s);
  EXPECT_FALSE(monitor.silent(kStart + 9s, 2s));
  monitor.heard(Rank{2}, kStart + 9s);
  monitor.heard(Rank{1}, kStart + 12s);
  EXPECT_EQ(monitor.silent(kStart + 12s, 2s), Rank{2});
}

TEST(HangReport, WaitingRank_IsNamedWithItsAction) {
  EXPECT_EQ(action_of(waits(0, Direction::Forward, 2, 5)),
            "RECV_F of stage 2, micro-batch 5 of step 7");
  EXPECT_EQ(action_of(waits(3, Direction::Backward, 2, 5)),
            "RECV_B of stage 2, micro-batch 5 of step 7");
}

/// Rank 1 says for ever that it is in the activity: that is a hang after `limit`, and not before.
void expect_limit(const Activity& activity,
                  const LivenessMonitor::Floor& floor,
                  LivenessMonitor::Clock::duration limit) {
  LivenessMonitor monitor(Rank{0}, 2, kStart);
  monitor.note(Rank{1}, activity, kStart + limit);
  EXPECT_FALSE(monitor.hanging(kStart + limit, floor));
  monitor.note(Rank{1}, activity, kStart + limit + 1ns);
  EXPECT_EQ(monitor.hanging(kStart + limit + 1ns, floor), Rank{1});
}

TEST(HangLimit, FirstOfAKind_HasTwelveTimesTheFloor) {
  expect_limit(works(0, 0, 1ms), 10s, 10s);
  expect_limit(works(0, 0), 10s, 120s);
  expect_limit(works(0, 0, 1ms), {}, 10s);
  expect_limit(works(0, 0), {}, 120s);
}

TEST(HangLimit, IsSixteenTimesTheLongestAction) {
  expect_limit(works(0, 0, 3s), 10s, 48s);
}

Activity usually(std::chrono::nanoseconds usual) {
  Activity activity = works(0, 0);
  activity.usual = usual;
  return activity;
}

TEST(HangLimit, FollowsWhatIsUsualOnceThatIsKnown) {
  expect_limit(usually(1ms), {}, 1200ms);
  expect_limit(usually(125ms), {}, 1200ms);
  expect_limit(usually(3s), {}, 24'200ms);
  expect_limit(usually(1ms), 5s, 5s);  // what the user asked for is the least
  expect_limit(usually(3s), 5s, 24'200ms);
}

TEST(HangLimit, IsNoneForWhatIsNoAction) {
  for (const Doing doing : {Doing::Starts, Doing::Pauses, Doing::Waits, Doing::Departs}) {
    Activity activity = works(0, 0, 1ms);
    activity.doing = doing;
    LivenessMonitor monitor(Rank{0}, 2, kStart);
    monitor.note(Rank{1}, activity, kStart + 24h);
    EXPECT_FALSE(monitor.hanging(kStart + 24h, 10s));
  }
}

TEST(HangLimit, CountsUntilTheLastReport) {
  LivenessMonitor monitor(Rank{0}, 2, kStart);
  monitor.note(Rank{1}, usually(1ms), kStart + 1s);

  EXPECT_FALSE(monitor.hanging(kStart + 5s, {}));  // it may be elsewhere by now
  EXPECT_THAT(monitor.overdue(kStart + 5s, {}), testing::ElementsAre(Rank{1}));
  EXPECT_EQ(monitor.until_next_limit(kStart + 1s, {}), 200ms);
  monitor.note(Rank{1}, usually(1ms), kStart + 5s);
  EXPECT_EQ(monitor.hanging(kStart + 5s, {}), Rank{1});
}

TEST(HangLimit, StartsAnewAfterAPauseOfTheProcessItself) {
  LivenessMonitor monitor(Rank{0}, 2, kStart);
  monitor.note(Rank{0}, works(0, 0, 1ms), kStart);
  monitor.heard(Rank{1}, kStart);
  monitor.suspended(60s);

  monitor.note(Rank{0}, works(0, 0, 1ms), kStart + 69s);
  EXPECT_FALSE(monitor.hanging(kStart + 69s, 10s));
  EXPECT_FALSE(monitor.silent(kStart + 69s, 10s));
  monitor.note(Rank{0}, works(0, 0, 1ms), kStart + 71s);
  EXPECT_EQ(monitor.hanging(kStart + 71s, 10s), Rank{0});
  Activity next = works(0, 1, 1ms);  // what is suspended is suspended to one action
  next.count = 2;
  next.since = kStart + 71s;
  monitor.note(Rank{0}, next, kStart + 82s);
  EXPECT_EQ(monitor.hanging(kStart + 82s, 10s), Rank{0});
}

TEST(ProgressSlot, EveryFieldSurvivesTheWay) {
  Activity activity = works(70'000, 3);
  activity.doing = Doing::Pauses;
  activity.sent = true;
  activity.peer = Rank{9};
  activity.longest = 12345ns;
  activity.tag.slice = Slice{4};
  activity.tag.replica = Replica{1};
  activity.pipeline = 40'000;
  activity.tag.direction = Direction::Backward;
  const Activity back = decode(encode(activity));

  EXPECT_EQ(encode(back), encode(activity));
  EXPECT_EQ(to_string(back), to_string(activity));
  EXPECT_EQ(back.tag, activity.tag);
  EXPECT_EQ(back.pipeline, 40'000);
  EXPECT_EQ(back.longest, 12345ns);
  activity.usual = 999ns;  // then the longest is not sent
  EXPECT_EQ(decode(encode(activity)).usual, 999ns);
  EXPECT_EQ(decode(encode(activity)).longest, 0ns);
}

TEST(ProgressSlot, KnowsHowLongTheKindTookBefore) {
  ProgressSlot slot("");
  slot.begin(works(1, 0));
  EXPECT_EQ(slot.now().longest, 0ns);
  slot.begin(works(2, 0));  // another stage is another kind
  EXPECT_EQ(slot.now().longest, 0ns);
  slot.begin(works(1, 1));
  EXPECT_GT(slot.now().longest, 0ns);
}

TEST(ProgressSlot, UsualTime_NeedsAHundredActions) {
  const auto usual_after = [](int count, std::uint64_t step) {
    ProgressSlot slot("");
    Activity work = works(1, 0);
    work.tag.step = step;
    for (int i = 0; i <= count; ++i) slot.begin(work);
    EXPECT_GT(slot.now().longest + slot.now().usual, 0ns);
    return slot.now().usual;
  };
  EXPECT_EQ(usual_after(99, 7), 0ns);
  EXPECT_GT(usual_after(100, 7), 0ns);
  EXPECT_EQ(usual_after(100, std::uint64_t{1} << 63U), 0ns);
}

TEST(ProgressSlot, TrainingAndEvaluationLearnApart) {
  constexpr std::uint64_t kTraining = 7, kEvaluation = std::uint64_t{1} << 63U;
  // What a slot knows of an action in `now` after a hundred of the same op and stage in `then`.
  const auto known = [](std::uint64_t then, std::uint64_t now) {
    ProgressSlot slot("");
    Activity work = works(1, 0);
    work.tag.step = then;
    for (int i = 0; i < 100; ++i) slot.begin(work);
    work.tag.step = now;
    slot.begin(work);
    return slot.now().longest + slot.now().usual;
  };
  EXPECT_EQ(known(kTraining, kEvaluation), 0ns);
  EXPECT_EQ(known(kEvaluation, kTraining), 0ns);
  EXPECT_GT(known(kTraining, kTraining + 1), 0ns);
  EXPECT_GT(known(kEvaluation, kEvaluation + 1), 0ns);
}

TEST(ProgressSlot, OtherProcess_ReadsItWhileWritten) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  const std::string path = directory.path() + "/r0.0.progress";
  EXPECT_FALSE(ProgressSlot::of(path));
  {
    ProgressSlot slot(path);
    EXPECT_THROW(ProgressSlot{path}, TransportError);
    std::jthread writer([&](const std::stop_token& stop) {
      for (int i = 0; !stop.stop_requested(); ++i) slot.begin(works(i % 1000, i % 1000));
    });
    for (int i = 0; i < 2000; ++i) {
      const auto there = ProgressSlot::of(path);
      const Activity here = slot.now();
      // Torn reads would mix two moments.
      if (there) {
        EXPECT_EQ(there->tag.stage.value, there->tag.micro_batch.value);
      }
      EXPECT_EQ(here.tag.stage.value, here.tag.micro_batch.value);
    }
  }
  EXPECT_FALSE(ProgressSlot::of(path));
  std::ofstream(path) << "short";
  EXPECT_FALSE(ProgressSlot::of(path));
  // An unlocked file is taken over, what is not a file is left alone.
  EXPECT_TRUE(ProgressSlot(path).of(path));
  std::filesystem::create_symlink("elsewhere", path);
  EXPECT_THROW(ProgressSlot{path}, TransportError);
  EXPECT_FALSE(std::filesystem::exists(directory.path() + "/elsewhere"));
}

TEST(ZeroMqHangReport, HangingRank_NamedEverywhere) {
  const PrivateDirectory directory(std::filesystem::temp_directory_path());
  ZeroMqOptions options;
  options.world = 3;
  options.directory = directory.path();
  options.heartbeat = 5ms;
  options.action_timeout = 100ms;
  const Endpoints ends = zeromq_mesh(options);
  std::vector<std::string> reports(3);
  const auto wait_for = [&](int self, int from) {
    try {
      const MessageTag tag{2, Direction::Forward, {}, Stage{self}, MicroBatch{1}, {}};
      (void)ends[static_cast<std::size_t>(self)]->receive(Rank{from}, tag, soon());
    } catch (const PeerHangs& hang) {
      reports[static_cast<std::size_t>(self)] = hang.what();
    }
  };

  std::jthread one([&] { wait_for(1, 0); });
  std::jthread two([&] { wait_for(2, 1); });
  for (const std::size_t waiting : {1U, 2U}) testing_transport::await_wait(*ends[waiting]);
  ends[0]->working({.what = "F", .step = 2, .micro_batch = MicroBatch{0}});
  ends[0]->working({.what = "F", .step = 2, .micro_batch = MicroBatch{1}});  // never ends
  one.join();
  two.join();
  const MessageTag any;
  try {
    (void)ends[0]->receive(Rank{1}, any, soon());
  } catch (const PeerHangs& hang) {
    reports[0] = hang.what();
  }

  for (const std::string& report : reports) {
    EXPECT_THAT(report,
                HasSubstr("everyone waits for rank 0: F of stage 0, micro-batch 1 of step 2"));
    EXPECT_THAT(report, HasSubstr("(rank 2 <- 1 <- 0)"));
  }
}

}  // namespace
}  // namespace millrace
