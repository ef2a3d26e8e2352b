// Costs as typed: of a full stage, of a chunk, from a file, with the schedules that have two chunks
// of their own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/verb_test.hpp"
#include "millrace/scheduler/plan/generators.hpp"

namespace millrace::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class CostsVerb : public VerbTest {};

TEST_F(CostsVerb, CostsOfAChunkGiveTheOrderThatCostsOfAFullStageGive) {
  for (const ScheduleEntry& entry : schedules()) {
    const int v = chunks_of(entry, {});
    if (!entry.timed || v == 1) continue;
    const auto order = [&](double share, const std::string& more) {
      const auto cost = [&](const char* flag, double value) {
        return std::string(flag) + std::to_string(value * share);
      };
      return command("simulate " + std::string(entry.name) + " -p 4 -m 7 --latency 1 --csv" +
                     cost(" --f ", 10) + cost(" --i ", 8) + cost(" --w ", 6) +
                     cost(" --mem-f ", 2) + more)
          .text;
    };
    EXPECT_EQ(order(1, ""), order(1.0 / v, " --chunk-costs")) << entry.name;
    if (!entry.takes("memory_limit")) continue;
    EXPECT_EQ(order(1, " --memory-limit 6"), order(1.0 / v, " --chunk-costs --memory-limit 6"));
    EXPECT_EQ(order(1, " --memory-limit 1p"), order(1.0 / v, " --chunk-costs --memory-limit 1p"));
  }
}

TEST_F(CostsVerb, ALimitInChunksIsKeptInChunks) {
  const Ran ran =
      command("simulate zb-v-auto --chunk-costs -p 4 -m 12 --mem-f 1 --memory-limit 8 --json");

  ASSERT_EQ(ran.code, 0) << ran.text;
  for (const json& rank : json::parse(ran.text)["per_rank"]) EXPECT_LE(rank["peak_bytes"], 8);
}

TEST_F(CostsVerb, AScheduleWithItsOwnChunksMayBeToldThem) {
  for (const ScheduleEntry& entry : schedules()) {
    const std::string name(entry.name);
    const std::string show = "show " + name + " -p 4 -m 8 --csv";
    if (entry.takes("chunks")) continue;
    const int v = chunks_of(entry, {});
    const Ran told =
        command(show + " -v " + std::to_string(v) + (entry.takes("slices") ? "" : " -q 1"));
    EXPECT_EQ(told.code, 0) << told.text;
    EXPECT_EQ(told.text, command(show).text) << name;
  }
  EXPECT_EQ(command("show wave --waves 2 -v 4").code, 0);

  const Ran wrong = command("show zb-v -v 3");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(
      wrong.text,
      HasSubstr("-v 3 was given, but schedule 'zb-v' has no free number of chunks, always 2"));
  EXPECT_EQ(command("compare zb-v,v-half -v 2").text.find("left out"), std::string::npos);
}

TEST_F(CostsVerb, MessagesTakeNoTimeOfTheRanksWhereverTheReceivesStand) {
  for (const std::string comms : {"", " --comms", " --comms=early", " --comms=before-use"}) {
    const Ran ran = command("simulate interleaved -p 4 -m 9 --latency .3 --json" + comms);
    ASSERT_EQ(ran.code, 0) << ran.text;
    EXPECT_NEAR(json::parse(ran.text)["makespan"], 35.2, 1e-12) << comms;
  }
  EXPECT_NE(command("show 1f1b --comms --csv").text,
            command("show 1f1b --comms=before-use --csv").text);

  const Ran wrong = command("simulate 1f1b --comms=late");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.text, HasSubstr("--comms is 'late'; known are early and before-use"));
}

}  // namespace
}  // namespace millrace::test
