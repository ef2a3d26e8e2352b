// millrace compare as typed: schedules side by side, a prediction beside a measurement.
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "cli/command_test.hpp"

namespace millrace::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class CompareCommand : public CommandTest {
 protected:
  /// A plan and a trace of it that took F = 1, I = W = 1 without latency.
  void write_pair() const {
    ASSERT_EQ(command("show 1f1b -p 2 -m 2 --plan " + path("p.json")).code, 0);
    ASSERT_EQ(command("show 1f1b -p 2 -m 2 --trace " + path("t.json")).code, 0);
  }

  [[nodiscard]] Ran with_trace(const std::string& options) const {
    return command("compare " + path("p.json") + " " + path("t.json") + " " + options);
  }
};

TEST_F(CompareCommand, SaysPerScheduleWhichOptionsAreLeftOut) {
  const Ran ran = command("compare 1f1b,interleaved,gpipe -v 2 --order lifo");
  const json all = json::parse(command("compare 1f1b,interleaved -v 2 --json").text);

  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(ran.text,
              AllOf(HasSubstr("\n1f1b does not take -v 2, --order lifo: left out\n"),
                    HasSubstr("\ninterleaved does not take --order lifo: left out\n"),
                    HasSubstr("\ngpipe does not take -v 2: left out\n")));
  EXPECT_EQ(all["1f1b"]["left_out"], json::array({"-v 2"}));
  EXPECT_EQ(all["interleaved"]["left_out"], json::array());
  EXPECT_EQ(all["interleaved"]["makespan"], 28.5);
}

TEST_F(CompareCommand, RefusesAnOptionThatNoScheduleTakes) {
  const Ran ran = command("compare 1f1b,zb-h1 -v 2");

  EXPECT_EQ(ran.code, 2);
  EXPECT_EQ(ran.text, "millrace: -v 2 was given, but none of 1f1b, zb-h1 takes it\n");
}

TEST_F(CompareCommand, GradientsOfReplicasTakeTimeInOnePipeline) {
  const std::string bytes = " -p 4 -m 8 --gradient-bytes 12 --bandwidth 2";
  const Ran ran = command("compare chimera,1f1b --json" + bytes);
  const json all = json::parse(ran.text);

  // Each rank exchanges the 12 bytes of two stages, one behind the other.
  EXPECT_EQ(all["chimera"]["makespan"], 30 + 2 * 12 / 2);
  EXPECT_EQ(all["chimera"]["sums"]["exposed"], 12);
  EXPECT_EQ(all["1f1b"]["makespan"], 33);
  EXPECT_EQ(all["1f1b"]["left_out"], json::array({"--gradient-bytes"}));
  EXPECT_EQ(json::parse(command("sweep chimera --json" + bytes).text)["makespan"], 42);
  EXPECT_THAT(command("simulate chimera" + bytes).text,
              HasSubstr("\ngradient all-reduces              12  "));
  expect_refused("compare 1f1b,gpipe" + bytes, 2, "without -d none of these schedules adds");
}

TEST_F(CompareCommand, OfATraceOfOtherRanks_SaysBothNumbers) {
  write_pair();
  expect_refused("compare 1f1b " + path("t.json") + " -p 4 -m 2",
                 65,
                 "the trace is of 2 ranks, the program of 4");
}

TEST_F(CompareCommand, TakesSchedulesAsAList) {
  EXPECT_THAT(command("compare 1f1b gpipe").text,
              StartsWith("millrace: compare takes schedules as a list, 1f1b,gpipe, or a plan"));
}

TEST_F(CompareCommand, WritesCsvAndOneDiagram) {
  const std::string subcommand = "compare 1f1b,zb-h1,interleaved -p 4 -m 8 ";

  const Ran csv = command(subcommand + "--csv --svg " + path("c.svg"));

  EXPECT_EQ(csv.code, 0);
  EXPECT_EQ(csv.text,
            "name,p,m,v,q,makespan,bubble_makespan_ratio,span,bubble_span_ratio,peak_activation,"
            "peak_memory,same_bits,valid\n"
            "1f1b p=4 m=8,4,8,1,1,33,0.272727272727,33,0.272727272727,4,4,yes,yes\n"
            "zb-h1 p=4 m=8,4,8,1,1,27,0.111111111111,27,0.111111111111,4,4,yes,yes\n"
            "interleaved p=4 m=8 v=2,4,8,2,1,28.5,0.157894736842,28.5,0.157894736842,5.5,5.5,yes,"
            "yes\n");
  EXPECT_THAT(read("c.svg"),
              AllOf(StartsWith("<svg"),
                    HasSubstr(">1f1b p=4 m=8: makespan 33, bubble 27.27 %, peak memory 4<"),
                    HasSubstr(">interleaved p=4 m=8 v=2: makespan 28.5")));
  EXPECT_EQ(command(subcommand + "--svg").text, read("c.svg"));
}

TEST_F(CompareCommand, NoCosts_PredictsWithMeasuredMeans) {
  write_pair();

  const Ran ran = with_trace("");

  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(ran.text,
              StartsWith("Simulated with the measured mean time of every op and stage.\n\n"
                         "          simulated  measured  measured / simulated\n"
                         "makespan          9         9                     1\n"));
  EXPECT_THAT(ran.text,
              HasSubstr("measured\n"
                        "rank 0 |"));
}

TEST_F(CompareCommand, LowersThePlanWhenItsRunExchangedMessages) {
  write_pair();
  ASSERT_EQ(command("show 1f1b -p 2 -m 2 --comms --latency 1 --trace " + path("t.json")).code, 0);

  const json all = json::parse(with_trace("--json").text);

  EXPECT_EQ(all["makespan"]["measured"], 9 + 2);  // F of micro-batch 0 and B of the last travel
  EXPECT_EQ(all["per_op"]["F"]["count"], 4);
}

TEST_F(CompareCommand, NamesWhatATraceOfAnotherPlanHas) {
  write_pair();
  ASSERT_EQ(command("show 1f1b -p 2 -m 3 --trace " + path("t.json")).code, 0);

  const Ran ran = with_trace("");

  EXPECT_EQ(ran.code, 65);
  EXPECT_THAT(ran.text, HasSubstr("the trace has 0F2 on rank 0, the program has not"));
}

TEST_F(CompareCommand, Costs_PredictAndAreNamed) {
  write_pair();

  const Ran typed = with_trace("--f 3 --latency 1");
  const json all = json::parse(with_trace("--f 3 --latency 1 --json").text);
  const json means = json::parse(with_trace("--latency 1 --json").text);
  const json ones = json::parse(with_trace("--f 1 --json").text);

  EXPECT_THAT(typed.text,
              StartsWith("Simulated with the given times: F 3, I 1, W 1, latency 1.\n"));
  EXPECT_EQ(all["costs"], "the given times: F 3, I 1, W 1, latency 1");
  EXPECT_EQ(means["costs"], "the measured mean time of every op and stage, latency 1");
  EXPECT_EQ(ones["costs"], "the given times: F 1, I 1, W 1");
  // Rank 1 works without a gap from 4 on: F0 B0, then F1 (there since 7) B1, each 3 + 2 long; B1's
  // gradient travels 1, and B1 of rank 0 takes 2.
  EXPECT_EQ(all["makespan"]["simulated"], 4 + 2 * 5 + 1 + 2);
  EXPECT_EQ(all["makespan"]["measured"], 9);
  // The same with F 1: F1 is there in time.
  EXPECT_EQ(means["makespan"]["simulated"], 2 + 2 * 3 + 1 + 2);
}

TEST_F(CompareCommand, GivesResidualsPerOpStageAndRank) {
  write_pair();

  const json all = json::parse(with_trace("--f 3 --json").text);

  EXPECT_EQ(all["per_op"]["F"]["count"], 4);
  EXPECT_EQ(all["per_op"]["F"]["residual"], 4 * (1 - 3));
  EXPECT_EQ(all["per_op"]["B"]["residual"], 0);
  EXPECT_EQ(all["per_stage"]["1F"]["simulated"], 6);
  EXPECT_EQ(all["per_rank"][0]["residual"], 2 * (1 - 3));
  // 1F0 starts at 3 instead of 1; the last, 0B1, at 13 instead of 7.
  EXPECT_EQ(all["per_rank"][0]["worst_start_residual"], 7 - 13);
}

TEST_F(CompareCommand, SaysWhereTheResidualComesFrom) {
  write_pair();
  // Micro-batch 1 takes 1 more in F of rank 0 and the run 2 more between its passes: rank 1 waits.
  //   rank 0: F0 0-1, F1 1-3, B0 6-8, B1 9-11     rank 1: F0 1-2, B0 4-6, F1 6-7, B1 7-9
  json events = json::array();
  const auto ran = [&](int rank, const char* action, int start, int end) {
    events.push_back({{"ph", "X"},
                      {"name", action},
                      {"pid", 0},
                      {"tid", rank},
                      {"ts", start * 1e6},
                      {"dur", (end - start) * 1e6},
                      {"args", {{"action", action}}}});
  };
  ran(0, "0F0", 0, 1);
  ran(0, "0F1", 1, 3);
  ran(0, "0B0", 6, 8);
  ran(0, "0B1", 9, 11);
  ran(1, "1F0", 1, 2);
  ran(1, "1B0", 4, 6);
  ran(1, "1F1", 6, 7);
  ran(1, "1B1", 7, 9);
  write("t.json", json({{"traceEvents", events}}).dump());

  const json all = json::parse(with_trace("--f 1 --json").text);
  const Ran text = with_trace("--f 1");

  // With the means, F 1.5 of rank 0, the step takes 9.5; with every pass as it was, 9.
  EXPECT_EQ(all["makespan"], json({{"simulated", 9}, {"measured", 11}}));
  EXPECT_EQ(all["residual"], json({{"passes", 0.5}, {"spread", -0.5}, {"between_passes", 2}}));
  EXPECT_THAT(text.text, HasSubstr("  between passes: dispatch, messages, waiting     2\n"));
}

TEST_F(CompareCommand, TakesTheCostsOfAFile) {
  write_pair();
  write("c.json",
        R"({"millrace_costs": 1, "unit": "s", "ranks": 2, "chunks": 1, "forward": [2, 2],
            "input": [1, 1], "weight": [1, 1], "latency": 5})");

  const json all = json::parse(with_trace("--costs " + path("c.json") + " --json").text);
  const json near =
      json::parse(with_trace("--costs " + path("c.json") + " --latency 0 --json").text);
  const Ran both = with_trace("--f 2 --costs " + path("c.json"));

  EXPECT_EQ(all["costs"], "the costs of " + path("c.json"));
  EXPECT_EQ(all["makespan"]["simulated"], 2 + 5 + 4 + 4 + 5 + 2);
  EXPECT_EQ(near["makespan"]["simulated"], 2 + 4 + 4 + 2);
  EXPECT_EQ(both.code, 2);
  EXPECT_THAT(both.text, StartsWith("millrace: --f was given, but --costs"));
  EXPECT_THAT(both.text, Not(HasSubstr("simulated")));
}

}  // namespace
}  // namespace millrace::test
