// millrace search as typed: what it prints, what it writes, and that train runs the winner.
#include <algorithm>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "cli/command_test.hpp"

namespace millrace::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ContainsRegex;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

class SearchCommand : public CommandTest {
 protected:
  /// The best schedule of a small case, as JSON.
  static json best(const std::string& options) {
    const Ran ran = command("search --budget 200 --json " + options);
    EXPECT_EQ(ran.code, 0) << ran.text;
    return ran.code == 0 ? json::parse(ran.text) : json();
  }
};

TEST_F(SearchCommand, FromAPlan_IsNotWorse) {
  ASSERT_EQ(command("search -p 3 -m 5 -v 1 --f 3 --i 2 --w 1 --out " + path("mine.plan")).code, 0);
  const std::string times = " --f 3 --i 2 --w 1";
  const json mine = json::parse(command("simulate --json " + path("mine.plan") + times).text);
  const json found =
      json::parse(command("search --budget 0 --json --from " + path("mine.plan") + times).text);

  EXPECT_EQ(found["p"], 3);
  EXPECT_EQ(found["m"], 5);
  EXPECT_LE(found["makespan"], mine["makespan"]);
  expect_refused("search -p 4 --from " + path("mine.plan"), 2, "-p 4 was given, but");
  expect_refused("search --from " + path("none.plan"), 2, "none.plan cannot be read");
}

TEST_F(SearchCommand, CountsGradientsOfReplicasInOnePipeline) {
  const std::string bytes = " -p 4 -m 8 --gradient-bytes 12 --bandwidth 2";
  const json both = best(bytes);

  EXPECT_EQ(both["makespan"], best("-p 4 -m 8 --no-bidirectional")["makespan"]);
  expect_refused("search --no-bidirectional" + bytes, 2, "--gradient-bytes is given without -d");
}

TEST_F(SearchCommand, Json_HasTheFieldsOfSimulate) {
  const json found = best("-p 2 -m 4 --f 3 --i 2 --w 1 --latency 1");
  const json simulated = json::parse(command("simulate 1f1b --json").text);

  for (const auto& [field, value] : simulated.items()) EXPECT_TRUE(found.contains(field)) << field;
  EXPECT_EQ(found["objective"], "makespan");
  EXPECT_FALSE(found["generator"].get<std::string>().empty());
  EXPECT_TRUE(found["parameters"].is_string());
  EXPECT_GE(found["makespan"], found["lower_bound"]);
  EXPECT_DOUBLE_EQ(found["gap"],
                   1 - found["lower_bound"].get<double>() / found["makespan"].get<double>());
  EXPECT_TRUE(found["proven"].is_boolean());
  EXPECT_FALSE(found["cut_by_time"].get<bool>());
  EXPECT_GT(found["evaluations"], 0);
  ASSERT_FALSE(found["front"].empty());
  for (const char* field : {"generator", "parameters", "makespan", "span", "peak_memory"})
    EXPECT_TRUE(found["front"][0].contains(field)) << field;
  EXPECT_EQ(best("-p 2 -m 4 --no-bidirectional -v 2")["front"][0]["v"], 2);
  EXPECT_EQ(best("-p 2 -m 4 -q 3")["front"][0]["q"], 3);
}

TEST_F(SearchCommand, PrintsTheFiguresAndTheParetoTable) {
  const Ran ran = command("search -p 2 -m 4 --budget 200 --no-bidirectional");

  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(ran.text,
              AllOf(ContainsRegex("makespan +[0-9.]+ +bubble"),
                    ContainsRegex("lower bound of the makespan +[0-9.]+ +gap"),
                    HasSubstr("Pareto front of makespan, span and memory:\n"),
                    ContainsRegex("peak memory +makespan +span +schedule"),
                    HasSubstr("orders timed\n")));
}

TEST_F(SearchCommand, Winner_IsAPlanThatTrainRuns) {
  const std::string plan = path("w.json");
  const json found = best("-p 2 -m 4 -v 1 --f 2 --no-bidirectional --out " + plan + " --svg " +
                          path("w.svg") + " --pareto " + path("front.svg"));

  EXPECT_EQ(files(), 3U);
  EXPECT_THAT(read("w.svg"), HasSubstr("<svg"));
  EXPECT_THAT(read("front.svg"), AllOf(StartsWith("<svg"), HasSubstr("</svg>")));
  EXPECT_EQ(command("verify " + plan).code, 0);
  const json simulated = json::parse(command("simulate " + plan + " --f 2 --json").text);
  EXPECT_EQ(simulated["makespan"], found["makespan"]);
  EXPECT_EQ(simulated["span"], found["span"]);
  const std::string model = "--model mlp:64-24-20-16-10 --steps 2 --batch-size 32";
  const Ran trained = command("train " + model + " --plan " + plan);
  EXPECT_EQ(trained.code, 0) << trained.text;
  EXPECT_THAT(trained.text, HasSubstr("test accuracy"));
}

TEST_F(SearchCommand, LimitTimesP_IsKept) {
  for (const double limit : {1.0, 1.5, 2.0}) {
    const json found = best("-p 3 -m 6 --memory-limit " + std::to_string(limit) + "p");
    EXPECT_LE(found["peak_memory"], limit * 3 * (1 + 1e-9)) << limit;
    EXPECT_EQ(found["valid"], true) << limit;
  }
  const Ran tight = command("search -p 3 -m 6 --memory-limit 0.1p");
  EXPECT_EQ(tight.code, 1);
  EXPECT_EQ(tight.text,
            "millrace: no schedule was found within the memory limit of 0.3 per rank; --recompute "
            "choose lets stages run their forward again to hold less\n");
}

TEST_F(SearchCommand, ChoosesWhatRecomputesWhereOnlyThatFits) {
  const std::string counts = "-p 2 -m 4 -v 2 --f 3 --no-bidirectional ";
  const std::string costs = "--f 3 --r 2 --mem-boundary 0.125 ";
  const std::string asked = counts + "--r 2 --mem-boundary 0.125 --memory-limit 0.8";
  EXPECT_EQ(command("search --budget 200 " + asked).code, 1);

  const std::string plan = path("w.json");
  const json found = best(asked + " --recompute choose --out " + plan);

  const std::string chosen = found["recompute"];
  EXPECT_THAT(chosen, StartsWith("stages:"));
  EXPECT_THAT(found["name"].get<std::string>(), EndsWith(" + recompute " + chosen));
  EXPECT_LE(found["peak_memory"], 0.8);
  const json simulated = json::parse(command("simulate " + plan + " --json " + costs).text);
  for (const char* figure : {"makespan", "span", "per_rank", "recompute", "name"})
    EXPECT_EQ(simulated[figure], found[figure]) << figure;
  double peak = 0;
  for (const json& rank : simulated["per_rank"])
    peak = std::max(peak, rank["peak_bytes"].get<double>());
  EXPECT_EQ(found["peak_memory"], peak);
  EXPECT_EQ(command("verify " + plan + " --memory-limit 0.8 " + costs).code, 0);
  EXPECT_THAT(command("simulate " + plan + " --recompute").text,
              HasSubstr("recomputes " + chosen + " by itself; leave it out"));
  const Ran text = command("search --budget 200 " + asked + " --recompute choose");
  EXPECT_THAT(text.text, HasSubstr("Recomputes " + chosen + ": --recompute=" + chosen));
  const std::string train =
      "train --model mlp:64-24-20-16-10 --steps 2 --batch-size 32 --json --plan " + plan;
  EXPECT_EQ(command(train).code, 0) << command(train).text;
  EXPECT_THAT(command(train + " --recompute").text,
              HasSubstr("the plan recomputes " + chosen + " by itself; leave it out"));
}

TEST_F(SearchCommand, PrintsTheRecomputeOptionOfTheWinner) {
  const std::string limit = " --memory-limit 3.5 --mem-boundary 0.5 ";
  for (const json& entry :
       best("-p 3 -m 9 -v 1 --no-bidirectional --recompute choose" + limit)["front"]) {
    if (entry["refinement"] != "" || entry["generator"] == "exact") continue;
    if (entry["recompute"].get<std::string>().ends_with(" in part")) continue;
    const Ran ran = command("simulate " + entry["generator"].get<std::string>() + " -p 3 -m 9 " +
                            entry["parameters"].get<std::string>() + " --mem-boundary 0.5 --json" +
                            " --recompute=" + entry["recompute"].get<std::string>());
    ASSERT_EQ(ran.code, 0) << ran.text;
    EXPECT_EQ(json::parse(ran.text)["makespan"], entry["makespan"]);
    EXPECT_EQ(json::parse(ran.text)["recompute"], entry["recompute"]);
  }
  EXPECT_EQ(best("-p 3 -m 9 --recompute choose")["recompute"], "none");
}

TEST_F(SearchCommand, RecomputeByMicroBatch_IsWrittenAsAPlan) {
  const std::string asked = "-p 2 -m 4 -v 1 --no-bidirectional --memory-limit 1 --recompute choose";
  const Ran chosen = command("search --budget 200 " + asked);
  EXPECT_THAT(chosen.text, HasSubstr("in part: --out writes the plan, which simulate and"));
  const std::string plan = path("finer.json");
  const json found = best(asked + " --out " + plan);
  EXPECT_EQ(found["makespan"], 15);
  EXPECT_EQ(found["proven"], false);
  EXPECT_EQ(found["bound_covers"], "recompute by micro-batch");
  EXPECT_THAT(found["recompute"].get<std::string>(), EndsWith(" in part"));
  EXPECT_EQ(json::parse(command("simulate --json " + plan).text)["makespan"], 15);
  EXPECT_EQ(command("verify --memory-limit 1 " + plan).code, 0);
  EXPECT_THAT(command("show --csv - " + plan).text, HasSubstr("has no sign for R"));
  const std::string train = "train --model mlp:64-24-10 --steps 1 --batch-size 32 --plan " + plan;
  EXPECT_EQ(command(train).code, 0);
  EXPECT_THAT(command(train + " --recompute").text,
              HasSubstr("the plan recomputes " + found["recompute"].get<std::string>()));
  EXPECT_EQ(best("-p 2 -m 4 -v 1")["bound_covers"], "no recompute");
}

TEST_F(SearchCommand, CountsBeyondASearch_AreRejectedAtOnce) {
  for (const auto& [counts, name] : {std::pair("-v 2147483647", "-v 2147483647"),
                                     std::pair("-q 2147483647", "-q 2147483647"),
                                     std::pair("--v-placement -v 1000000000", "-v 1000000000")}) {
    const Ran ran = command(std::string("search -p 2 -m 2 --memory-limit 1p ") + counts);
    EXPECT_EQ(ran.code, 2);
    EXPECT_THAT(ran.text,
                HasSubstr(std::string("-p 2, -m 2, ") + name +
                          ": a search takes at most 16777216 forwards"));
  }
}

TEST_F(SearchCommand, PeakInsideAPass_IsWithinTheLimit) {
  write("costs", R"({"millrace_costs": 1, "unit": "s", "ranks": 2, "chunks": 1,
    "forward": [10, 12], "input": [10, 12], "weight": [9, 11],
    "memory_forward": [10, 10], "memory_input_peak": [50, 50],
    "memory_input": [-5, -5], "memory_weight": [-5, -5]})");
  const std::string counts = "-p 2 -m 4 -v 1 --costs " + path("costs") + " --memory-limit ";
  const Ran small = command("search " + counts + "20");
  EXPECT_EQ(small.code, 1);
  EXPECT_THAT(small.text, HasSubstr("no schedule was found within the memory limit of 20"));
  EXPECT_EQ(command("search " + counts + "59 --budget 200").code, 1);
  const json found = best(counts + "70");
  double most = 0;
  for (const json& rank : found["per_rank"])
    most = std::max(most, rank["peak_bytes"].get<double>());
  EXPECT_EQ(found["peak_memory"], most);
  EXPECT_LE(most, 70);
  const std::string zb = "simulate zb-h1 -p 2 -m 4 --costs " + path("costs") + " --memory-limit ";
  EXPECT_THAT(command(zb + "69").text, HasSubstr("memory reaches 70; the limit is 69"));
  EXPECT_THAT(command("simulate 1f1b -p 2 -m 2 --mem-f 5,6 --mem-i 4,5 --mem-w -9,-11 "
                      "--memory-limit 11")
                  .text,
              HasSubstr("memory reaches 14; the limit is 11"));
}

TEST_F(SearchCommand, ShorterThanAPublishedOrder_IsToldBySimulate) {
  const std::string counts = " -p 8 -m 16 --f 2 --i 3 --w 1";
  for (const std::string name : {"v-half", "v-min"}) {
    const std::string subject = "simulate " + name;
    EXPECT_THAT(command(subject + counts).text,
                ContainsRegex("Within the same memory search finds a shorter one: [0-9.]+ -> "));
    const json told = json::parse(command(subject + counts + " --json").text);
    double peak = 0;
    for (const json& rank : told["per_rank"])
      peak = std::max(peak, rank["peak_bytes"].get<double>());
    const json found = best(counts + " -v 2 --memory-limit " + std::to_string(peak));
    EXPECT_LT(told["relisted_makespan"], told["makespan"]);
    EXPECT_LE(found["makespan"], told["relisted_makespan"]);
    EXPECT_THAT(command("list " + name).text, HasSubstr(" search finds shorter orders\n"));
  }
  EXPECT_FALSE(json::parse(command("simulate zb-v --json").text).contains("relisted_makespan"));
}

TEST_F(SearchCommand, KeepsToTheVThatIsAskedFor) {
  const std::string plan = path("w.json");
  const json found = best("-p 3 -m 6 --v-placement --out " + plan);

  EXPECT_EQ(found["v"], 2);
  EXPECT_EQ(json::parse(read("w.json"))["shape"]["placement"], json::parse("[[0, 1, 2, 2, 1, 0]]"));
  for (const json& entry : found["front"]) EXPECT_EQ(entry["model_copies"], 1);
  EXPECT_EQ(command("search -p 3 -m 6 -v 1 --v-placement").text,
            "millrace: --v-placement is of schedules with at least 2 chunks per rank and without "
            "slices\n");
  EXPECT_EQ(command("search -p 3 -m 6 --memory-limit 1,2,3").text,
            "millrace: --memory-limit has 3 values that differ; the search keeps one limit on all "
            "ranks: give one, such as the smallest, and check the winner with verify\n");
  EXPECT_EQ(best("-p 3 -m 6 --memory-limit 4,4,4"), best("-p 3 -m 6 --memory-limit 4"));
}

TEST_F(SearchCommand, MakesTheObjectiveThatIsAskedForSmall) {
  const std::string options = "-p 3 -m 6 --f 3 --i 3 --w 2 --no-bidirectional";
  const json makespan = best(options), span = best(options + " --objective span");

  EXPECT_EQ(span["objective"], "span");
  EXPECT_LE(span["span"], makespan["span"]);
  EXPECT_LE(makespan["makespan"], span["makespan"]);
}

TEST_F(SearchCommand, PairCosts_PairPassesWhereThatPays) {
  const std::string plan = path("pairs.json"), costs = " --pair-cost 2 --pair-weight 1.25";
  const json found = best("-p 4 -m 8 -v 1" + costs + " --out " + plan);

  EXPECT_THAT(read("pairs.json"), ContainsRegex("[BIW][0-9]\\+"));
  EXPECT_LT(found["makespan"], best("-p 4 -m 8 -v 1")["makespan"]);
  EXPECT_EQ(json::parse(command("simulate --json " + plan + costs).text)["makespan"],
            found["makespan"]);
}

TEST_F(SearchCommand, FullBackward_FindsNoSplitOne) {
  const json found = best("-p 3 -m 6 --full-backward --out " + path("full.json"));
  EXPECT_GT(found["makespan"], best("-p 3 -m 6")["makespan"]);
  for (const json& list : json::parse(read("full.json"))["program"])
    EXPECT_THAT(list.get<std::string>(), testing::Not(ContainsRegex("[IW][0-9]")));
}

TEST_F(SearchCommand, FixesTheChunks) {
  for (const unsigned chunks : {1U, 2U}) {
    const std::string plan = path("v.json");
    (void)best("-p 2 -m 4 --no-bidirectional -v " + std::to_string(chunks) + " --out " + plan);
    EXPECT_EQ(json::parse(read("v.json"))["shape"]["placement"][0].size(), 2 * chunks);
  }
}

TEST_F(SearchCommand, TakesUnequalStagesRanksAndLinks) {
  const json stages = best("-p 2 -m 4 -v 1 --f 1,3 --no-bidirectional");
  EXPECT_EQ(stages["per_rank"][0]["busy"], 4 * (1 + 1 + 1));
  EXPECT_EQ(stages["per_rank"][1]["busy"], 4 * (3 + 1 + 1));
  EXPECT_GE(stages["lower_bound"], 1 + 4 * (3 + 1 + 1));

  const json ranks = best("-p 2 -m 4 -v 1 --rank-speed 1,2 --no-bidirectional");
  EXPECT_EQ(ranks["per_rank"][1]["busy"], 4 * 3 / 2);

  const json links = best("-p 2 -m 1 -v 1 --latency 0,2,5,0 --no-bidirectional");
  EXPECT_EQ(links["makespan"], 1 + 2 + 2 + 5 + 2);  // F, over, F and I, back, I and W
}

TEST_F(SearchCommand, GivesTheSameAnswerForTheSameSeed) {
  const std::string options = "-p 3 -m 5 --f 3 --i 4 --w 2 --memory-limit 1.2p --seed 7";

  EXPECT_EQ(best(options), best(options));
}

TEST_F(SearchCommand, BadInput_ExitsWith2) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--memory-limit 2q", "--memory-limit 2q: must be a number, or a number with suffix p"},
      {"--memory-limit -1p", "--memory-limit -1: must be a number from 0"},
      {"--objective best", "--objective best: must be makespan or span"},
      {"--budget -1", "--budget -1: must be an integer from 0"},
      {"--recompute all", "--recompute all: must be choose or none"},
      {"--r -1", "--r -1: must be a number from 0"},
      {"--mem-boundary 1,2,3", "--mem-boundary has 3 values"},
      {"--group 2", "--group: not an option of search"},
      {"--f 1,2,3", "--f has 3 values"},
      {"--out /nowhere/w.json", "--out /nowhere/w.json cannot be written"},
      {"--pareto /nowhere/f.svg", "--pareto /nowhere/f.svg cannot be written"},
      {"--jitter 0.1", "--jitter: not an option of search"},
  };
  for (const auto& [arguments, message] : cases) {
    const Ran ran = command("search -p 2 -m 2 " + arguments);
    EXPECT_EQ(ran.code, 2) << arguments;
    EXPECT_THAT(ran.text, StartsWith("millrace: " + message)) << arguments;
    EXPECT_EQ(std::count(ran.text.begin(), ran.text.end(), '\n'), 1) << arguments;
  }
}

}  // namespace
}  // namespace millrace::test
