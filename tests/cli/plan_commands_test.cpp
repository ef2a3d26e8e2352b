// The plan subcommands as typed: figures, files, and one message with exit code 2 for bad input.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/command_test.hpp"

namespace millrace::test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using namespace std::string_literals;

class PlanCommands : public CommandTest {};

TEST_F(PlanCommands, ShowDrawsTheStaircase) {
  const Ran ran = command("show 1f1b -p 2 -m 2");

  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.text,
            "1f1b p=2 m=2: makespan 9, bubble 3 (33.33 %)\n"
            "rank 0 | 0 1 . .B0== .B1==\n"
            "rank 1 | . 0B0== 1B1== . .\n");
}

TEST_F(PlanCommands, SimulateHintsAtTooFewMicroBatches) {
  const std::string hint =
      "4 ranks share 2 micro-batches, too few to keep all busy: try -m 4 or more.\n";

  EXPECT_THAT(command("simulate 1f1b -p 4 -m 2").text, HasSubstr(hint));
  EXPECT_THAT(command("simulate 1f1b -p 4 -m 4").text, testing::Not(HasSubstr("too few")));
}

TEST_F(PlanCommands, TrainHintsAtTooFewMicroBatches) {
  const std::string train = "train --model mlp:64-24-20-16-10 --steps 1 -p 4 -m ";

  EXPECT_THAT(command(train + "2").text, HasSubstr("try -m 4 or more.\n"));
  EXPECT_THAT(command(train + "4").text, testing::Not(HasSubstr("too few")));
}

TEST_F(PlanCommands, SimulateGivesThePublishedRateOfZbH1) {
  const Ran ran =
      command("simulate zb-h1 -p 8 -m 24 --f 18.522 --i 18.086 --w 9.337 --latency 0.601 --json");
  ASSERT_EQ(ran.code, 0) << ran.text;
  const json figures = json::parse(ran.text);

  EXPECT_NEAR(figures["bubble_makespan_ratio"], 0.1585, 5e-5);
  EXPECT_EQ(figures["per_rank"].size(), 8U);
  EXPECT_EQ(figures["valid"], true);
  for (const char* field : {"makespan",
                            "span",
                            "span_asap",
                            "bubble_makespan",
                            "bubble_span",
                            "bubble_span_ratio",
                            "capacity",
                            "critical_path"})
    EXPECT_TRUE(figures.contains(field)) << field;
}

std::vector<std::string> keys(const json& object) {
  std::vector<std::string> names;
  for (const auto& [name, value] : object.items()) names.push_back(name);
  return names;
}

TEST_F(PlanCommands, SimulateJsonHasTheseFieldsAndNoOthers) {
  const json all = json::parse(command("simulate 1f1b -p 2 -m 2 --json").text);

  EXPECT_THAT(keys(all),
              ElementsAre("bubble_makespan",
                          "bubble_makespan_ratio",
                          "bubble_span",
                          "bubble_span_ratio",
                          "capacity",
                          "critical_path",
                          "m",
                          "makespan",
                          "name",
                          "p",
                          "per_rank",
                          "q",
                          "recompute",
                          "span",
                          "span_asap",
                          "step",
                          "v",
                          "valid"));
  EXPECT_THAT(keys(all["per_rank"][0]),
              ElementsAre("busy", "idle", "idle_overlapped", "peak_activation", "peak_bytes"));
  EXPECT_THAT(keys(all["per_rank"][0]["idle"]),
              ElementsAre("dependency", "drain", "imbalance", "processor", "transfer", "warm_up"));
  EXPECT_THAT(keys(all["capacity"][0]),
              ElementsAre("destination", "direction", "minimal", "source", "sufficient"));
}

TEST_F(PlanCommands, EveryJsonObject_NamesItsSchedule) {
  ASSERT_EQ(command("show seq-vpp -p 2 -m 3 -q 2 -v 2 --plan " + path("p.json")).code, 0);
  ASSERT_EQ(command("show " + path("p.json") + " --trace " + path("t.json")).code, 0);
  const auto of = [](const json& all) {
    return json::array({all["name"], all["p"], all["m"], all["v"], all["q"]});
  };
  const std::string subject = path("p.json") + " --json";
  const json expected = {"seq-vpp p=2 m=3 v=2 q=2", 2, 3, 2, 2};

  EXPECT_EQ(of(json::parse(command("simulate " + subject).text)), expected);
  EXPECT_EQ(of(json::parse(command("verify " + subject).text)), expected);
  EXPECT_EQ(of(json::parse(command("compare " + subject).text)[path("p.json")]), expected);
  EXPECT_EQ(
      of(json::parse(command("compare " + path("p.json") + " " + path("t.json") + " --json").text)),
      expected);
  const json found = json::parse(command("search -p 2 -m 3 -v 1 --budget 0 --json").text);
  EXPECT_EQ(found["p"], 2);
  EXPECT_EQ(found["m"], 3);
  EXPECT_EQ(found["v"], 1);
  EXPECT_EQ(found["q"], 1);
  EXPECT_THAT(found["name"].get<std::string>(), HasSubstr(found["generator"].get<std::string>()));
}

TEST_F(PlanCommands, PairCost_IsTheTimeOfAPair) {
  const auto makespan = [](const std::string& options) {
    return json::parse(command("simulate dualpipe -p 4 -m 8 --json " + options).text)["makespan"]
        .get<double>();
  };
  // F, I and W of 1 each: a pair of 3 is what --atomic-pairs runs.
  EXPECT_EQ(makespan("--pair-cost 3"), makespan("--atomic-pairs"));
  EXPECT_LT(makespan("--pair-cost 2.5"), makespan("--pair-cost 3"));
  EXPECT_EQ(command("simulate dualpipe --atomic-pairs --pair-cost 3").text,
            "millrace: --atomic-pairs and --pair-cost both say how long a pair takes; leave one of "
            "them out\n");
}

TEST_F(PlanCommands, Split_RunsEveryBackwardAsTwoPasses) {
  const auto program = [](const std::string& options) {
    return json::parse(command("show 1f1b -p 2 -m 2 --plan " + options).text)["program"];
  };
  EXPECT_EQ(program("--split"),
            json::parse(R"(["0F0 0F1 0I0 0W0 0I1 0W1", "1F0 1I0 1W0 1F1 1I1 1W1"])"));
  EXPECT_THAT(command("verify 1f1b --split").text, HasSubstr("1f1b p=4 m=8 + split: valid"));
  EXPECT_EQ(command("show zb-h1 --split --plan").text, command("show zb-h1 --plan").text);
}

TEST_F(PlanCommands, SimulatePrintsWholeTimesToTheLastDigit) {
  // (m + p - 1)(F + I + W) with F = 10^12 + 1, I = W = 1.
  EXPECT_THAT(command("simulate 1f1b -p 2 -m 2 --f 1000000000001").text,
              HasSubstr("makespan                3000000000009  From"));
}

TEST_F(PlanCommands, SimulateRepeatsStepsWithAndWithoutABarrier) {
  const json all = json::parse(command("simulate zb-h2 -p 4 -m 12 --iterations 6 --json").text);

  EXPECT_EQ(all["span"], 3 * 12);  // ZB-H2 without a bubble in the span
  EXPECT_GT(all["makespan"], all["span"]);
  EXPECT_EQ(all["iterations"]["steps"], 6);
  EXPECT_EQ(all["iterations"]["per_step_barrier"], all["makespan"]);
  EXPECT_EQ(all["iterations"]["per_step_overlap"], all["span"]);
}

TEST_F(PlanCommands, Simulate_PrintsStepsAndJitterAsTables) {
  const std::string text = command("simulate zb-h2 --iterations 4 --jitter 0.1").text;

  EXPECT_THAT(text,
              AllOf(HasSubstr("\n4 steps                 each  in all\n"
                              "with a barrier between    27     108\n"
                              "without                   24      99\n"),
                    HasSubstr("\nmakespan of 100 jittered runs\nmean")));
}

TEST_F(PlanCommands, SimulateJittersBySeedWithPercentiles) {
  const std::string subcommand = "simulate 1f1b --jitter 0.2 --json --seed ";
  const json one = json::parse(command(subcommand + "1").text)["jitter"];

  EXPECT_EQ(one, json::parse(command(subcommand + "1").text)["jitter"]);
  EXPECT_NE(one, json::parse(command(subcommand + "2").text)["jitter"]);
  double last = 0;
  for (const char* field : {"least", "p05", "median", "p95", "p99", "most"}) {
    EXPECT_GE(one[field], last) << field;
    last = one[field];
  }
  EXPECT_GT(one["mean"], 33.0 * 0.8);
  EXPECT_LT(one["mean"], 33.0 * 1.2);
}

TEST_F(PlanCommands, Simulate_QueuesMessagesOfABusyLink) {
  const std::string subcommand =
      "simulate forward -p 2 -m 4 -v 1 --json --bandwidth 1 --message-bytes 3";

  EXPECT_EQ(json::parse(command(subcommand).text)["makespan"], 4 + 3 + 1);
  EXPECT_EQ(json::parse(command(subcommand + " --contention").text)["makespan"], 1 + 4 * 3 + 1);
}

TEST_F(PlanCommands, FilesAreWrittenWholeAndReadBack) {
  const Ran ran =
      command("show zb-h1 --csv " + path("a.csv") + " --svg " + path("a.svg") + " --html " +
              path("a.html") + " --trace " + path("a.json") + " --plan " + path("plan.json"));

  ASSERT_EQ(ran.code, 0) << ran.text;
  EXPECT_EQ(files(), 5U);
  EXPECT_THAT(read("a.csv"), StartsWith("0F0,0F1,0F2,0F3,0I0,0W0,"));
  EXPECT_EQ(command("show " + path("plan.json") + " --csv").text, read("a.csv"));
  EXPECT_EQ(command("verify " + path("a.csv")).code, 0);
  EXPECT_THAT(command("compare " + path("plan.json") + " " + path("a.json")).text,
              HasSubstr("measured / simulated\nmakespan         27        27"));
}

TEST_F(PlanCommands, BadFile_IsNamedWithTheFault) {
  const std::string file = path("bad.csv");
  const auto verified = [&](const std::string& text) {
    write("bad.csv", text);
    return command("verify " + file);
  };
  const Ran order = verified("0F0,0B0\n1B0,1F0\n"), damaged = verified("0F0,0B0\n1F0,oops\n"),
            empty = verified("");

  EXPECT_EQ(order.code, 1);
  EXPECT_THAT(order.text, HasSubstr("rule 5 (order)"));
  EXPECT_EQ(damaged.code, 65);
  EXPECT_EQ(damaged.text, "millrace: " + file + ":2:5: expected a stage number, found 'o'\n");
  EXPECT_EQ(empty.code, 65);
  EXPECT_EQ(empty.text,
            "millrace: " + file + ":1:1: there is no row; a schedule has one row per rank\n");
  EXPECT_EQ(command("verify " + path(".")).text,
            "millrace: the schedule " + path(".") + " cannot be read: Is a directory\n");
}

TEST_F(PlanCommands, BadInput_OneMessageAndExitCodeTwo) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"simulate 1f2b", "unknown schedule '1f2b'; did you mean '1f1b'?"},
      {"simulate 1f1b -m abc", "-m abc: must be an integer from 1 to 2147483647\n"},
      {"show 1f1b -m 0", "-m 0: must be an integer from 1 to 2147483647\n"},
      {"show 1f1b -v 2", "-v 2 was given, but schedule '1f1b' has no"},
      {"show 1f1b --f 1,2,3", "--f has 3 values; allowed are 1, p = 4 or one per stage, 4\n"},
      {"show 1f1b --f -1", "--f -1: must be a number from 0 to 1000000000000000\n"},
      {"show gpipe --order up", "--order up: must be fifo or lifo\n"},
      {"show 1f1b --bandwidth 5",
       "--bandwidth is given without --message-bytes; they go together\n"},
      {"show 1f1b --json", "--json: not an option of show"},
      {"show 1f1b --csv --svg", "--csv and --svg would both go to standard output"},
      {"simulate 1f1b --json --csv", "--json and --csv would both go to standard output"},
      {"simulate 1f1b --f 1,,2", "--f 1,,2: must be numbers with one comma between"},
      {"simulate 1f1b --memory-limit p",
       "--memory-limit p: must be a number before the p, such as 1p\n"},
      {"simulate 1f1b --rank-speed 1", "--rank-speed has 1 value; allowed are p = 4\n"},
      {"show 1f1b --legacy-csv",
       "--legacy-csv says how to read a CSV file; schedule '1f1b' is generated\n"},
      {"show xyz", "unknown schedule 'xyz'; known: gpipe"},
      {"show chimera -m 3", "-m is 3 with -p 4; chimera works with multiples of p: 4\n"},
      {"show chimera -m 7", "-m is 7 with -p 4; chimera works with multiples of p: 4 or 8\n"},
      {"show bitpipe -m 6", "-m is 6 with -p 4; bitpipe works with multiples of p: 4 or 8\n"},
      {"show stp -m 10", "-m is 10 with -p 4; this schedule works from m = 3p-1: at least 11\n"},
      {"show slimpipe -q 3", "-q is 3 with -p 4; this schedule works from q = p: at least 4\n"},
      {"compare 1f1b,", "'1f1b,' has an empty name; compare takes schedules as a list"},
      {"simulate 1f1b --jitter 2", "--jitter 2: must be a number from 0 to 1\n"},
      {"simulate 1f1b --memory-limit 2q",
       "--memory-limit 2q: must be a number, or a number with suffix p"},
      {"simulate 1f1b --latency 1,2", "--latency has 2 values; allowed are 1 or one"},
      {"simulate 1f1b --contention", "--contention is given without --bandwidth"},
      {"simulate 1f1b --rank-speed 1,2", "--rank-speed has 2 values; allowed are p = 4"},
      {"simulate 1f1b --rank-speed 0",
       "--rank-speed 0: must be a number from 1e-09 to 1000000000000000\n"},
      {"simulate 1f1b --cores 0", "--cores 0: must be an integer from 1 to 1000000\n"},
      {"simulate 1f1b --cores 2 --iterations 3",
       "--iterations overlaps steps, which are simulated with a processor per rank; "
       "leave "
       "--cores 2 or --iterations out\n"},
      {"show 1f1b --svg /nowhere/a.svg",
       "--svg /nowhere/a.svg cannot be written: No such file or directory\n"},
      {"compare 1f1b --html a", "--html goes with a plan and the trace file of its run;"},
      {"simulate seq-1f1b -q 3 --slice-costs 1,2",
       "--slice-costs has 2 values; the schedule has q = 3 slices"},
      {"simulate seq-1f1b -q 2 --slice-costs 0,0",
       "--slice-costs are all 0; at least one slice takes time"},
      {"simulate 1f1b --slice-costs 1,2",
       "--slice-costs was given, but schedule '1f1b' has no slices"},
      {"search -p 2 -m 2 --slice-costs 1,2",
       "--slice-costs needs -q: the search cuts no slices of its own"},
      {"",
       "a subcommand is missing; use list, train, checkpoint, generate, show, verify, simulate, "
       "compare, sweep, search, import, split, launch, worker, keys, doctor; see millrace --help"},
      {"simulte 1f1b -p 4",
       "simulte: not a subcommand; did you mean simulate? See millrace --help"},
      {"frobnicate", "frobnicate: not a subcommand; use list, train"},
      {"--frob", "--frob: not an option of millrace; see millrace --help"},
      {"simulate 1f1b --lateny 3",
       "--lateny: not an option of simulate; did you mean --latency? See millrace simulate --help"},
      {"simulate 1f1b --lateny=3", "--lateny: not an option of simulate; did you mean --latency?"},
      {"train --weight_decay 3",
       "--weight_decay: not an option of train; did you mean --weight-decay"},
      {"simulate 1f1b --p 4", "--p: not an option of simulate; did you mean -p? See"},
      {"list --jsn", "--jsn: not an option of list; did you mean --json?"},
      {"show 1f1b --frobnicate", "--frobnicate: not an option of show; see millrace show --help"},
      {"show 1f1b extra", "extra: one argument too many for show; see millrace show --help"},
      {"simulate", "simulate needs a schedule; see millrace simulate --help"},
      {"compare", "compare needs schedules; see millrace compare --help"},
      {"simulate 1f1b -m", "-m needs a value; see millrace simulate --help"},
      {"simulate 1f1b -p 3 -p 4", "-p is given 2 times; give it once; see millrace simulate"},
      {"train --lr abc", "--lr abc: must be a number; see millrace train --help"},
      {"train --ranks 3.5", "-p 3.5: must be an integer; see millrace train"},
      {"train --seed 1x", "--seed 1x: must be an integer; see millrace train --help"},
      {"worker --job -1", "--job -1: must be an integer from 0; see millrace worker --help"},
      {"launch -n x -- train", "-n x: must be an integer; see millrace launch --help"},
      {"launch --grace x -- train", "--grace x: must be a number; see millrace launch --help"},
      {"train --recompute=all --json=maybe", "--json maybe: must be true or false; see millrace"},
      {"show 1f1b --comms=maybe", "--comms maybe: must be early or before-use"},
      {"compare 1f1b gpipe zb-h1", "3 schedules: too many; see millrace compare --help"},
  };
  for (const auto& [arguments, message] : cases) {
    const Ran ran = command(arguments);
    EXPECT_EQ(ran.code, 2) << arguments;
    EXPECT_THAT(ran.text, StartsWith("millrace: " + message)) << arguments;
    EXPECT_EQ(std::count(ran.text.begin(), ran.text.end(), '\n'), 1) << arguments;
  }
}

TEST_F(PlanCommands, SharedCores_AreSimulatedAndDrawn) {
  const Ran shared = command("simulate 1f1b -p 2 -m 2 --cores 1");
  const json enough = json::parse(command("simulate 1f1b -p 2 -m 2 --cores 2 --json").text);
  const json table = json::parse(command("compare 1f1b,gpipe -p 2 -m 2 --cores 1 --json").text);

  // All passes one after the other: 2 ranks, 2 micro-batches, F 1 and B 2.
  EXPECT_THAT(shared.text,
              StartsWith("1f1b p=2 m=2: valid, same bits as sequential\n"
                         "2 ranks share 1 core\n"));
  EXPECT_THAT(shared.text, HasSubstr("imbalance  core  dependency"));
  EXPECT_EQ(enough["makespan"], 9);
  EXPECT_EQ(enough["per_rank"][0]["idle"]["processor"], 0);
  EXPECT_EQ(table["1f1b"]["makespan"], 12);
  EXPECT_EQ(table["gpipe"]["makespan"], 12);
  EXPECT_THAT(command("show 1f1b -p 2 -m 2 --cores 1").text, HasSubstr("makespan 12"));
}

TEST_F(PlanCommands, AFileSaysItsOwnCounts) {
  ASSERT_EQ(command("show 1f1b -p 2 -m 2 --plan " + path("p.json")).code, 0);

  EXPECT_EQ(command("verify " + path("p.json") + " -p 3").text,
            "millrace: -p 3 was given, but " + path("p.json") +
                " is a file that says its own counts; leave it out\n");
}

TEST_F(PlanCommands, EveryScheduleOfTheListIsShown) {
  const json list = json::parse(command("list --json").text);

  for (const auto& entry : list)
    EXPECT_EQ(command("show " + entry["name"].get<std::string>() + " -m 12").code, 0)
        << entry["name"];
}

/// The widest line of an output; a byte of a character after its first does not count.
std::size_t width_of(const std::string& text) {
  std::size_t widest = 0, width = 0;
  for (const char byte : text) {
    if (byte == '\n') width = 0;
    if (byte != '\n' && (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U) ++width;
    widest = std::max(widest, width);
  }
  return widest;
}

TEST_F(PlanCommands, UsualShapes_FitInto100Columns) {
  ASSERT_EQ(command("show 1f1b -p 2 -m 8 --plan " + path("p.json")).code, 0);
  ASSERT_EQ(command("train -p 2 -m 8 --steps 4 --trace " + path("t.json") + " --profile " +
                    path("c.json"))
                .code,
            0);
  const std::string counts = " -p 8 -m 16";
  for (const std::string& typed :
       {"list"s,
        "list v-min"s,
        "show 1f1b"s,
        "verify interleaved" + counts,
        "simulate zb-v -d 2 --gradient-bytes 6 --bandwidth 1 --cores 4" + counts,
        "simulate 1f1b --accumulate 3" + counts,
        "simulate 1f1b --jitter 0.1 --iterations 3 --latency 0.1" + counts,
        "simulate 1f1b -p 2 --costs " + path("c.json"),
        "compare 1f1b,zb-h2,group-interleaved,chimera" + counts,
        "compare " + path("p.json") + " " + path("t.json"),
        "search --budget 100 -p 4 -m 8"s,
        "search --budget 100 -p 2 -m 8 --costs " + path("c.json"),
        "train -p 2 -m 4 --epochs 2"s,
        "launch -n 2 -- train -m 4 --epochs 2"s,
        "doctor"s}) {
    const Ran ran = command(typed);
    EXPECT_EQ(ran.code, 0) << ran.text;
    EXPECT_LE(width_of(ran.text), 100U) << ran.text;
  }
}

TEST_F(PlanCommands, SliceCostsShareAStageOutInTheirProportion) {
  const std::string one = "simulate seq-1f1b -p 2 -m 1 -q 2 --f 4 --i 0 --w 0 --json ";
  EXPECT_EQ(json::parse(command(one).text)["makespan"], 6);  // 2 + 2, then the last 2
  EXPECT_EQ(json::parse(command(one + "--slice-costs 1,3").text)["makespan"], 7);  // 1 + 3 + 3
  EXPECT_EQ(json::parse(command(one + "--slice-costs 0.25,0.75").text)["makespan"], 7);
  EXPECT_EQ(json::parse(command(one + "--slice-costs 5,5").text)["makespan"], 6);
}

TEST_F(PlanCommands, ZbAutoKeepsTheLimitOfUnequalStages) {
  const std::string unequal = "simulate zb-auto -p 3 -m 9 --mem-f 1,3,1 --mem-i 0,1,0 --json ";
  for (const char* limit : {"4", "5", "9"}) {
    const Ran ran = command(unequal + "--memory-limit " + limit);
    ASSERT_EQ(ran.code, 0) << ran.text;
    EXPECT_EQ(json::parse(ran.text)["valid"], true) << limit;
  }
  const Ran ran = command(unequal + "--memory-limit 3");
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.text, HasSubstr("stage 1 holds 4 with one micro-batch, so 4 works"));
}

}  // namespace
}  // namespace millrace::test
