// Costs as typed: of a full stage, of a chunk, from a file, with the schedules that have two chunks
// of their own.
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/command_test.hpp"
#include "millrace/scheduler/plan/generators.hpp"

namespace millrace::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class CostsCommand : public CommandTest {};

TEST_F(CostsCommand, ChunkCosts_GiveTheOrderOfStageCosts) {
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

TEST_F(CostsCommand, ALimitInChunksIsKeptInChunks) {
  const Ran ran =
      command("simulate zb-v-auto --chunk-costs -p 4 -m 12 --mem-f 1 --memory-limit 8 --json");

  ASSERT_EQ(ran.code, 0) << ran.text;
  for (const json& rank : json::parse(ran.text)["per_rank"]) EXPECT_LE(rank["peak_bytes"], 8);
}

TEST_F(CostsCommand, ScheduleWithFixedChunks_AcceptsThem) {
  for (const ScheduleEntry& entry : schedules()) {
    const std::string name(entry.name);
    const std::string show = "show " + name + " -p 4 -m 12 --plan";
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

TEST_F(CostsCommand, Messages_TakeNoRankTime) {
  for (const std::string comms : {"", " --comms", " --comms=early", " --comms=before-use"}) {
    const Ran ran = command("simulate interleaved -p 4 -m 9 --latency .3 --json" + comms);
    ASSERT_EQ(ran.code, 0) << ran.text;
    EXPECT_NEAR(json::parse(ran.text)["makespan"], 35.2, 1e-12) << comms;
  }
  EXPECT_NE(command("show 1f1b --comms --csv").text,
            command("show 1f1b --comms=before-use --csv").text);

  const Ran wrong = command("simulate 1f1b --comms=late");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.text, HasSubstr("--comms late: must be early or before-use"));
}

/// Four full stages, in the words of a cost file and in those of the flags.
constexpr const char* kFile =
    R"({"millrace_costs": 1, "unit": "s", "ranks": 4, "chunks": 1, "forward": [2, 4, 6, 8],
        "input": [4, 4, 6, 6], "weight": [2, 2, 2, 4]})";
constexpr const char* kFlags = " --f 2,4,6,8 --i 4,4,6,6 --w 2,2,2,4";

TEST_F(CostsCommand, FileOfFullStages_EqualsFlags) {
  write("costs.json", kFile);
  for (const char* schedule :
       {"1f1b", "zb-v", "zb-v-auto", "interleaved -v 4", "seqpipe -q 2", "dualpipe", "zb-auto"}) {
    const std::string subcommand = "simulate " + std::string(schedule) + " -p 4 -m 8 --json";
    json filed = json::parse(command(subcommand + " --costs " + path("costs.json")).text);
    filed.erase("unit");
    EXPECT_EQ(filed, json::parse(command(subcommand + kFlags).text)) << schedule;
  }
  const Ran compared =
      command("compare 1f1b,zb-v,interleaved -p 4 -m 8 --costs " + path("costs.json"));
  EXPECT_EQ(compared.code, 0) << compared.text;
}

TEST_F(CostsCommand, ALimitNeedsAMemoryToLimit) {
  write("costs.json", kFile);
  const std::string subcommand = "simulate zb-v-auto -p 4 -m 8 --costs " + path("costs.json");
  for (const char* limit : {" --memory-limit 1p", " --memory-limit 1000"}) {
    const Ran ran = command(subcommand + limit);
    EXPECT_EQ(ran.code, 2);
    EXPECT_THAT(ran.text, HasSubstr("says nothing about memory; give --mem-f"));
  }
  const json without = json::parse(command(subcommand + " --json").text);
  EXPECT_EQ(without["per_rank"][0]["peak_bytes"], without["per_rank"][0]["peak_activation"]);

  const Ran typed = command(subcommand + " --mem-f 10 --memory-limit 1p --json");
  ASSERT_EQ(typed.code, 0) << typed.text;
  for (const json& rank : json::parse(typed.text)["per_rank"]) EXPECT_LE(rank["peak_bytes"], 40);
  EXPECT_EQ(command(subcommand + " --f 1").code, 2);
}

TEST_F(CostsCommand, Compare_ContinuesAfterAnInvalidSchedule) {
  const Ran limited = command("compare gpipe,1f1b -p 4 -m 8 --memory-limit 1p");
  EXPECT_EQ(limited.code, 1);
  EXPECT_THAT(limited.text, HasSubstr("gpipe is not valid: rule 9 (memory)"));

  const Ran refused = command("compare 1f1b,chimera -p 4 -m 6");
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.text,
              AllOf(HasSubstr("1f1b p=4 m=6"), HasSubstr("chimera is not compared: ")));
  EXPECT_EQ(command("compare chimera,dualpipe -p 3 -m 6").code, 2);
  EXPECT_EQ(command("compare 1f1b,gpipe -p 4 -m 6").code, 0);
}

TEST_F(CostsCommand, PlanWithOtherEdges_IsRejected) {
  const auto plan_with = [&](const std::string& edges) {
    std::ofstream(path("skip.json")) << R"({"millrace_plan": 1, "name": "a skip edge",
             "shape": {"ranks": 3, "micro_batches": 1, "placement": [[0, 1, 2]],
                       "edges": )" << edges
                                     << R"(},
             "program": ["0F0 0B0", "1F0 1B0", "2F0 2B0"]})";
    EXPECT_EQ(command("verify " + path("skip.json")).code, 0);
  };
  const std::string job =
      "train --model mlp:64-8-8-10,residual --steps 1 --batch-size 4 --plan " + path("skip.json");
  for (const std::string run : {"", "launch -n 3 -- "}) {
    plan_with("[[0, 0, 1, 0], [0, 0, 2, 0], [1, 0, 2, 1]]");
    EXPECT_EQ(command(run + job).code, 0);
    plan_with("[[0, 0, 1, 0], [1, 0, 2, 0], [0, 0, 2, 1]]");
    const Ran ran = command(run + job);
    EXPECT_EQ(ran.code, 2) << ran.text;
    EXPECT_THAT(ran.text, HasSubstr("the edges of the plan are not those of the model"));
  }
}

TEST_F(CostsCommand, TrainRunsAScheduleCsv) {
  const std::string model = "train --model mlp:64-24-20-16-10 --steps 2 --batch-size 32 --json ";
  const auto hash = [](const std::string& text) {
    return json::parse(text.substr(text.find('{')))["weights_hash"];
  };
  for (const char* comms : {"", " --comms"}) {
    ASSERT_EQ(command("show 1f1b -p 2 -m 4 --csv " + path("plan.csv") + comms).code, 0);
    const Ran ran = command(model + "--plan " + path("plan.csv"));
    ASSERT_EQ(ran.code, 0) << ran.text;
    EXPECT_EQ(hash(ran.text),
              hash(command(model + "--schedule 1f1b --ranks 2 --micro-batches 4").text));
  }
  write("old.csv", "0F0,0BW0\n1F0,1BW0\n");
  EXPECT_THAT(command(model + "--plan " + path("old.csv")).text, HasSubstr("--legacy-csv --plan"));
}

TEST_F(CostsCommand, ForeignCsv_NamesTheFlag) {
  write("old.csv", "0F0,0BW0\n1F0,1BW0\n");
  write("sharded.csv", "0UNSHARD,0F0,0B0\n1F0,1B0\n");
  EXPECT_THAT(command("verify " + path("old.csv")).text, HasSubstr("(--legacy-csv)"));
  EXPECT_THAT(command("verify " + path("sharded.csv")).text, HasSubstr("(--skip-sharding)"));
  EXPECT_EQ(command("verify --legacy-csv " + path("old.csv")).code, 0);
  EXPECT_EQ(command("verify --skip-sharding " + path("sharded.csv")).code, 0);
}

}  // namespace
}  // namespace millrace::test
