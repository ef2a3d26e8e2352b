// Costs from traces: our own come back as they were simulated, others by the patterns of their
// names, and a trace that lacks something is told so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/costs.hpp"
#include "millrace/scheduler/plan/draw.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/simulate.hpp"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// A trace-event list of complete events: name, start, duration, further members.
struct Event {
  std::string name;
  double start = 0;
  double length = 0;
  std::string more = R"("pid":0,"tid":0)";
};

std::string trace_of(const std::vector<Event>& events) {
  std::string text = "[";
  for (const Event& event : events)
    text += std::string(text == "[" ? "" : ",") + R"({"ph":"X","name":")" + event.name +
            R"(","ts":)" + std::to_string(event.start) + R"(,"dur":)" +
            std::to_string(event.length) + "," + event.more + "}";
  return text + "]";
}

Costs costs_of(const std::string& trace, const TraceCostOptions& options = {}) {
  TraceCosts costs(options);
  const auto fault = costs.add(trace);
  EXPECT_FALSE(fault) << to_string(*fault);
  return costs.costs();
}

std::string refusal(const std::string& trace, const TraceCostOptions& options = {}) {
  try {
    (void)costs_of(trace, options);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(TraceCosts, OwnTrace_ReturnsSimulatedCosts) {
  for (const char* name : {"1f1b", "zb-h1", "interleaved", "seq-1f1b"}) {
    ScheduleOptions options{.ranks = 3, .micro_batches = 6};
    const Program program = generate(name, options);
    Cost cost = Cost::unit(program.shape);
    for (std::size_t i = 0; i < cost.forward.size(); ++i) {
      cost.forward[i] = 3 + static_cast<double>(i);
      cost.backward_input[i] = 5 + static_cast<double>(2 * i);
      cost.backward_weight[i] = 4 + static_cast<double>(i % 2);
    }
    const auto timeline = std::get<Timeline>(simulate(Graph(program), cost));

    const Costs file = costs_of(draw_trace(program, timeline), {.ranks = 3});

    EXPECT_EQ(file.stages, program.shape.stages());
    EXPECT_EQ(file.slices, program.shape.slices);
    for (std::size_t i = 0; i < cost.forward.size(); ++i) {
      const double tick = cost.ticks_per_unit;
      EXPECT_NEAR(file.forward[i], cost.forward[i] / tick, 1e-9) << name << i;
      EXPECT_NEAR(file.input[i] + file.weight[i],
                  (cost.backward_input[i] + cost.backward_weight[i]) / tick,
                  1e-9);
    }
    EXPECT_EQ(read_costs(write_costs(file)).costs->forward, file.forward);
  }
}

TEST(TraceCosts, OneSlowStep_ChangesNothing) {
  const Costs file = costs_of(trace_of(
      {{"0F0", 0, 9e6}, {"0F1", 0, 2e6}, {"0F2", 0, 1e6}, {"0B0", 0, 4e6}, {"0B1", 0, 2e6}}));

  EXPECT_THAT(file.forward, ElementsAre(2));
  EXPECT_THAT(file.backward, ElementsAre(3));
  EXPECT_THAT(file.input, ElementsAre(1.5));
  EXPECT_THAT(file.weight, ElementsAre(1.5));
}

TEST(TraceCosts, ReadNamesByTheirPatterns) {
  TraceCostOptions options;
  options.patterns = {.forward = "fwd stage={stage} *mb={micro_batch}|F/{stage}",
                      .backward = "",
                      .input = "*dgrad*{stage}",
                      .weight = "*wgrad*{stage}"};
  const std::string trace = trace_of({{"fwd stage=1 of 2, mb=12", 0, 5e6},
                                      {"F/0", 0, 4e6},
                                      {"a dgrad of 0", 0, 3e6},
                                      {"a dgrad of 1", 0, 2e6},
                                      {"wgrad 0", 0, 1e6},
                                      {"wgrad 1", 0, 1e6},
                                      {"wgrad 1 and more", 0, 7e6},
                                      {"fwd stage=x mb=1", 0, 7e6}});

  const Costs file = costs_of(trace, options);

  EXPECT_THAT(file.forward, ElementsAre(4, 5));
  EXPECT_THAT(file.input, ElementsAre(3, 2));
  EXPECT_THAT(file.weight, ElementsAre(1, 1));
  EXPECT_THAT(file.backward, IsEmpty());
}

TEST(TraceCosts, StageFromProcessThreadOrFile) {
  TraceCostOptions options;
  options.patterns = {.forward = "Forward*", .backward = "Backward*", .input = "", .weight = ""};
  const auto rank = [](const std::string& id, double seconds) {
    const std::string more = R"("pid":)" + id + R"(,"tid":)" + id;
    return trace_of({{"Forward 0", 0, seconds * 1e6, more}, {"Backward 0", 0, 1e6, more}});
  };

  for (const StageOf source : {StageOf::Process, StageOf::Thread, StageOf::File}) {
    options.stage = source;
    TraceCosts costs(options);
    // Ascending ids: 7 is stage 0. By file the first is.
    ASSERT_FALSE(costs.add(rank("4711", 2)));
    ASSERT_FALSE(costs.add(rank("7", 3)));
    EXPECT_THAT(costs.costs().forward,
                source == StageOf::File ? ElementsAre(2, 3) : ElementsAre(3, 2));
  }
}

TEST(TraceCosts, PreferTheDevicesTimesAndKeepToACategory) {
  const std::string host = R"("pid":0,"tid":0,"cat":"user_annotation")";
  const std::string device = R"("pid":0,"tid":7,"cat":"gpu_user_annotation")";
  const std::string trace = trace_of({{"0F0", 0, 1e6, host},
                                      {"0F0", 0, 5e6, device},
                                      {"0B0", 0, 2e6, host},
                                      {"0B0", 0, 6e6, device}});

  EXPECT_THAT(costs_of(trace).forward, ElementsAre(5));
  EXPECT_THAT(costs_of(trace, {.category = "user_annotation"}).forward, ElementsAre(1));
}

TEST(TraceCosts, PairBeginAndEndOfOneThread) {
  const std::string trace = R"([
    {"ph":"B","name":"0F0","pid":0,"tid":0,"ts":0},
    {"ph":"B","name":"0F1","pid":0,"tid":1,"ts":1000000},
    {"ph":"B","name":"inner","pid":0,"tid":0,"ts":1000000},
    {"ph":"E","pid":0,"tid":0,"ts":2000000},
    {"ph":"E","pid":0,"tid":1,"ts":4000000},
    {"ph":"E","pid":0,"tid":0,"ts":3000000},
    {"ph":"E","pid":0,"tid":0,"ts":3000000}])";

  EXPECT_THAT(costs_of(trace, {.forward_only = true}).forward, ElementsAre(3));
}

TEST(TraceCosts, SayWhatATraceLacks) {
  const Event forward{"0F0", 0, 1}, backward{"0B0", 0, 1};

  EXPECT_THAT(refusal("[]"), HasSubstr("no event of the trace is an F; look at the pattern"));
  EXPECT_EQ(refusal(trace_of({forward})),
            "no event of the trace is a B of stage 0, nor an I and a W");
  EXPECT_EQ(refusal(trace_of({forward, {"0I0", 0, 1}})), "no event of the trace is a W of stage 0");
  EXPECT_EQ(refusal(trace_of({forward, backward, {"2F0", 0, 1}})),
            "no event of the trace is of stage 1; the last is 2");
  EXPECT_EQ(refusal(trace_of({forward, backward, {"1F0", 0, 1}, {"1B0", 0, 1}}), {.ranks = 3}),
            "3 ranks cannot hold the 2 stages of the trace evenly");
}

TEST(TraceCosts, SayWhichBackwardsTheyHalve) {
  const Event forward{"0F0", 0, 1}, backward{"0B0", 0, 1}, input{"1I0", 0, 1}, weight{"1W0", 0, 1};
  const Costs halved = costs_of(trace_of({forward, backward}));
  const std::string assumed = "I and W are half of B each, which the trace does not split";

  EXPECT_EQ(halved.assumed, assumed);
  EXPECT_EQ(read_costs(write_costs(halved)).costs->assumed, assumed);
  EXPECT_EQ(merged_stages(halved, {0, 1}, 1).assumed, assumed);
  EXPECT_EQ(costs_of(trace_of({forward, backward, {"1F0", 0, 1}, input, weight})).assumed,
            assumed + " in stage 0");
  EXPECT_EQ(costs_of(trace_of({forward, {"0I0", 0, 1}, {"0W0", 0, 1}})).assumed, "");
  EXPECT_EQ(costs_of(trace_of({forward}), {.forward_only = true}).assumed, "");
}

TEST(TraceCosts, CutTrace_UsesItsWholeEvents) {
  const std::string whole = trace_of({{"0F0", 0, 2e6}, {"0B0", 0, 4e6}, {"0F1", 0, 8e6}});
  const std::size_t last = whole.rfind("{");
  for (const std::string& head : {std::string(), std::string(R"({"unit":"ms","traceEvents":)")})
    for (const std::size_t kept : {last - 1, last, last + 1, last + 20, whole.size() - 2}) {
      TraceCosts costs({});
      ASSERT_FALSE(costs.add(head + whole.substr(0, kept))) << kept;
      EXPECT_EQ(costs.cut_after(), 2U) << kept;
      EXPECT_THAT(costs.costs().forward, ElementsAre(2));
    }
  TraceCosts costs({});
  ASSERT_FALSE(costs.add(whole.substr(0, whole.size() - 1)));
  EXPECT_EQ(costs.cut_after(), 3U);
  ASSERT_FALSE(costs.add(whole));
  EXPECT_FALSE(costs.cut_after());
}

TEST(TraceCosts, NameThePhasesThatAreNotRead) {
  const std::string begun = R"({"name":"0F0","pid":0,"tid":0,"ts":0,"ph":)";

  EXPECT_EQ(
      refusal("[" + begun + R"("b"},)" + begun + R"("e"}])"),
      "no event of the trace is an F; events with its name are of phase b, e; those of X, and "
      "of B with E, are read");
  EXPECT_THAT(refusal("[" + begun + R"("B"}])"), HasSubstr("of phase B without E; those of X"));
  EXPECT_EQ(refusal("[" + begun + R"("M"}])"),
            "no event of the trace is an F; look at the pattern of its name");
  EXPECT_THAT(refusal("[" + begun + R"("X","dur":1},{"ph":"n","name":"0B0"}])"),
              HasSubstr("a B of stage 0, nor an I and a W; events with its name are of phase n;"));
}

TEST(TraceCosts, KeepNothingOfATraceWithAFault) {
  TraceCosts costs({});
  const auto fault_of = [&](const std::string& trace) {
    const auto fault = costs.add(trace);
    return fault ? to_string(*fault) : "";
  };

  EXPECT_EQ(fault_of("{"), "1:2: this is not JSON");
  EXPECT_EQ(fault_of("{}"), "1:1: there is no list of trace events");
  EXPECT_EQ(fault_of(R"([{"ph":"X","name":"0F0","ts":0,"dur":1},{"ph":"X","name":"0F1"}])"),
            "1:1: the event 0F1 has no duration");
  EXPECT_EQ(fault_of(trace_of({{"0F0", 0, -1}})), "1:1: the event 0F0 ends before it begins");
  EXPECT_EQ(costs.seen().events[0], 0U);
}

TEST(TraceCosts, RefuseAPatternThatCannotTellTheStage) {
  const auto refused = [](const std::string& pattern, StageOf stage) {
    TraceCostOptions options{.stage = stage};
    options.patterns.forward = pattern;
    try {
      TraceCosts costs(options);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };

  EXPECT_THAT(refused("F{micro_batch}", StageOf::Name), HasSubstr("has no {stage}"));
  EXPECT_EQ(refused("F{micro_batch}", StageOf::File), "");
  EXPECT_THAT(refused("{rank}F", StageOf::Name),
              HasSubstr("a pattern has {rank}; known are {stage}, {micro_batch} and {slice}"));
  EXPECT_THAT(refused("{stage}F{stage}", StageOf::Name), HasSubstr("{stage} twice"));
  EXPECT_THAT(refused("{stageF", StageOf::Name), HasSubstr("has a { without }"));
}

}  // namespace
}  // namespace millrace
