// Traces of PyTorch's pipeline engine and of Primus: a recorded one, and each form by hand.
#include "millrace/scheduler/plan/rank_traces.hpp"

#include <fstream>
#include <iterator>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/costs.hpp"
#include "millrace/scheduler/plan/draw.hpp"
#include "millrace/scheduler/plan/generators.hpp"

namespace millrace {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

/// "0: 0F1 10+5": rank, pass, start and length in microseconds.
std::vector<std::string> passes(const RankTraces& traces, bool last_step = true) {
  std::vector<std::string> result;
  const auto number = [](const json& value) { return std::to_string(value.get<int>()); };
  const json trace = json::parse(traces.trace(last_step));
  for (const json& event : trace["traceEvents"])
    result.push_back(number(event["tid"]) + ": " + event["name"].get<std::string>() + " " +
                     number(event["ts"]) + "+" + number(event["dur"]));
  return result;
}

/// A Kineto trace of regions: name, start, length, category.
std::string kineto(const std::vector<std::tuple<std::string, int, int, std::string>>& regions) {
  json events = json::array();
  for (const auto& [name, start, length, category] : regions)
    events.push_back(
        {{"ph", "X"}, {"name", name}, {"ts", start}, {"dur", length}, {"cat", category}});
  return json{{"traceEvents", events}}.dump();
}

std::string recorded(int rank) {
  std::ifstream in(MILLRACE_SOURCE_DIR "/tests/traces/zb-v-rank" + std::to_string(rank) + ".json");
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(RankTraces, RecordedZbV_IsTimelineOfItsPlan) {
  RankTraces traces;
  ASSERT_TRUE(traces.add(recorded(0)));
  ASSERT_TRUE(traces.add(recorded(1)));
  const Program plan = generate("zb-v", {.ranks = 2, .micro_batches = 4});

  const ParsedTimeline read = read_trace(traces.trace(true), plan);
  TraceCosts costs({});
  ASSERT_FALSE(costs.add(traces.trace(false)));

  ASSERT_TRUE(read.timeline) << to_string(read.diagnostics.front());
  EXPECT_EQ(costs.costs().stages, 4);
  EXPECT_EQ(costs.seen().events, (std::array<std::size_t, 4>{16, 0, 16, 16}));
  // PP:3F0 lasts 5403 us, until 5848 us of which its message was under way.
  const Interval waited = read.timeline->ranks[0][3];
  EXPECT_EQ(to_string(plan.ranks[0][3]), "3F0");
  EXPECT_NEAR(waited.end - waited.start, 848e-6, 1e-6);
}

TEST(RankTraces, HostRegion_BeginsWhenMessageIsThere) {
  RankTraces traces;
  ASSERT_TRUE(traces.add(kineto({{"PP:1RECV_F0", 10, 5, "user_annotation"},
                                 {"gloo:recv", 14, 36, "user_annotation"},
                                 {"PP:1F0", 20, 40, "user_annotation"},
                                 {"gloo:send", 22, 5, "user_annotation"},
                                 {"PP:1SEND_F0", 61, 5, "user_annotation"},
                                 {"PP:1I0", 70, 20, "user_annotation"},
                                 {"PP:1W0", 90, 10, "user_annotation"},
                                 {"PP:1REDUCE_GRAD", 101, 5, "user_annotation"},
                                 {"PP:1RESHARD", 107, 5, "user_annotation"}})));

  EXPECT_THAT(passes(traces), ElementsAre("0: 1F0 50+10", "0: 1I0 70+20", "0: 1W0 90+10"));
}

TEST(RankTraces, Pair_HalvesShareItsTime) {
  RankTraces traces;
  ASSERT_TRUE(traces.add(kineto({{"PP:(0F3;3B1)OVERLAP_F_B", 10, 8, "user_annotation"}})));

  EXPECT_THAT(passes(traces), ElementsAre("0: 0F3 10+4", "0: 3B1 14+4"));
}

TEST(RankTraces, DeviceRegions_Count) {
  RankTraces traces;
  ASSERT_TRUE(traces.add(
      kineto({{"PP:0F0", 10, 8, "user_annotation"}, {"PP:0F0", 30, 50, "gpu_user_annotation"}})));

  EXPECT_THAT(passes(traces), ElementsAre("0: 0F0 30+50"));
}

TEST(RankTraces, GPipeRegions_AreOfTheirRank) {
  RankTraces traces;
  const std::string rank =
      kineto({{"Forward 3", 0, 8, "user_annotation"}, {"Backward 3", 8, 16, "user_annotation"}});
  ASSERT_TRUE(traces.add(rank) && traces.add(rank));

  EXPECT_THAT(passes(traces),
              ElementsAre("0: 0F3 0+8", "0: 0B3 8+16", "1: 1F3 0+8", "1: 1B3 8+16"));
}

TEST(RankTraces, SeveralSteps_LastIsDrawn) {
  RankTraces traces;
  ASSERT_TRUE(traces.add(
      kineto({{"PP:0F0", 10, 8, "user_annotation"}, {"PP:0F0", 30, 5, "user_annotation"}})));

  EXPECT_THAT(passes(traces), ElementsAre("0: 0F0 30+5"));
  EXPECT_THAT(passes(traces, false), ElementsAre("0: 0F0 10+8", "0: 0F0 30+5"));
}

TEST(RankTraces, OtherTrace_IsNotTaken) {
  RankTraces traces;
  EXPECT_FALSE(traces.add(kineto({{"aten::mm", 10, 8, "cpu_op"}, {"PP:what", 1, 1, ""}})));
  EXPECT_FALSE(traces.add("[]"));
  EXPECT_FALSE(traces.add("no JSON"));
  EXPECT_TRUE(traces.empty());
}

// The members and their order are those that Primus' pp_visualizer.py writes; the times are ours.
TEST(RankTraces, Primus_ChunksArePlaced) {
  const auto rank = [](int base) {
    const auto at = [&](double start) { return base + start; };
    const json step = {{"total", 9.0},
                       {"memory", 1.0},
                       {"fwd_start", {at(0), at(1)}},
                       {"fwd_end", {at(1), at(2)}},
                       {"fwd_minibatch", {0, 0}},
                       {"fwd_chunk", {0, 1}},
                       {"bwd_start", {at(2), at(4)}},
                       {"bwd_end", {at(3), at(5)}},
                       {"bwd_minibatch", {0, 0}},
                       {"bwd_chunk", {1, 0}},
                       {"wgrad_start", {at(3), at(5)}},
                       {"wgrad_end", {at(4), at(6)}},
                       {"wgrad_minibatch", {0, 0}},
                       {"wgrad_chunk", {1, 0}}};
    return json{{"1", step}}.dump();
  };
  RankTraces loop, vee(true);
  for (RankTraces* traces : {&loop, &vee})
    ASSERT_TRUE(traces->add(rank(0)) && traces->add(rank(2)));

  EXPECT_THAT(passes(loop),
              UnorderedElementsAre("0: 0F0 0+1000",
                                   "0: 2F0 1000+1000",
                                   "0: 2I0 2000+1000",
                                   "0: 0I0 4000+1000",
                                   "0: 2W0 3000+1000",
                                   "0: 0W0 5000+1000",
                                   "1: 1F0 2000+1000",
                                   "1: 3F0 3000+1000",
                                   "1: 3I0 4000+1000",
                                   "1: 1I0 6000+1000",
                                   "1: 3W0 5000+1000",
                                   "1: 1W0 7000+1000"));
  EXPECT_THAT(passes(vee), ::testing::Contains("0: 3F0 1000+1000"));
  EXPECT_THAT(passes(vee), ::testing::Contains("1: 2I0 4000+1000"));
}

TEST(RankTraces, PrimusWithoutChunks_TakesMegatronOrder) {
  const auto passes_of = [](int count) {
    json starts = json::array(), ends = json::array();
    for (int i = 0; i < count; ++i) {
      starts.push_back(i);
      ends.push_back(i + 1);
    }
    return json{{"2", {{"fwd_start", starts}, {"fwd_end", ends}}},
                {"10", {{"bwd_start", starts}, {"bwd_end", ends}}}}
        .dump();
  };
  RankTraces traces;
  ASSERT_TRUE(traces.add(passes_of(8)) && traces.add(passes_of(8)));
  EXPECT_THROW(static_cast<void>(traces.trace(true)), InvalidArgument);
  ASSERT_TRUE(traces.add(R"({"pp_size": 2, "vp_size": 2, "num_mbs": 4})"));

  std::string order;
  for (const std::string& pass : passes(traces))
    if (pass.starts_with("0: ")) order += pass.substr(3, 4);
  EXPECT_EQ(order, "0F0 0F1 2F0 2F1 0F2 0F3 2F2 2F3 2B0 2B1 0B0 0B1 2B2 2B3 0B2 0B3 ");
}

TEST(RankTraces, DamagedPrimusFile_IsRejected) {
  RankTraces traces;
  EXPECT_THROW(traces.add(R"({"1": {"fwd_start": "x"}})"), DataError);
  EXPECT_THROW(traces.add(R"({"1": {"fwd_start": [)"), DataError);
  EXPECT_THROW(traces.add(R"({"1": {"fwd_start": [0], "fwd_end": [1],
                              "fwd_minibatch": [0], "fwd_chunk": [-1]}})"),
               DataError);
}

}  // namespace
}  // namespace millrace
