// millrace verify as typed: the verdict as text and as JSON, the grid under a fault, the files.
#include <sys/resource.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "cli/command_test.hpp"

namespace millrace::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

class VerifyCommand : public CommandTest {};

TEST_F(VerifyCommand, ProvesScheduleCapacityMemoryAndBits) {
  const Ran ran = command("verify interleaved -p 2 -m 4 -v 2 --capacity 3");

  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(
      ran.text,
      "interleaved p=2 m=4 v=2: valid, 32 actions\n"
      "deadlock-free with sends and receives inserted: rendezvous yes, capacity 3 yes, unbounded "
      "yes\n"
      "queued messages per channel: at most 2, room for 1 is enough (each channel: --json)\n"
      "peak activations by rank: 2.5 1.5\n"
      "same bits as sequential: yes\n");
}

TEST_F(VerifyCommand, FifoTransport_SwappedMessagesAreFault) {
  const Ran right = command("verify zb-v -p 2 -m 3 --transport fifo");
  const Ran wrong = command("verify zb-v -p 2 -m 3 --comms=before-use --transport fifo");

  EXPECT_EQ(right.code, 0);
  EXPECT_THAT(right.text, HasSubstr("rendezvous yes, capacity 1 yes, unbounded yes, fifo yes\n"));
  EXPECT_EQ(wrong.code, 1);
  EXPECT_THAT(
      wrong.text,
      StartsWith("rule 6 (messages), rank 1, action 8 (2RECV_B0): 2RECV_B0 receives message "
                 "2 of rank 0 to rank 1, which is 0SEND_F2; its own, 3SEND_B0, is message "
                 "3\naction |"));
  EXPECT_THAT(command("verify 1f1b --transport gloo").text,
              HasSubstr("--transport gloo: must be unbounded, rendezvous or fifo"));
}

TEST_F(VerifyCommand, Fault_PrintsGridWithFaultyActions) {
  write("bad.csv", "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n");

  const Ran ran = command("verify " + path("bad.csv"));

  EXPECT_EQ(ran.code, 1);
  EXPECT_EQ(ran.text,
            "rule 5 (order), rank 0, action 1 (0B0): the order has a cycle: rank 0 waits in 0B0 "
            "for 1B0 of rank 1; rank 1 waits in 1F1 for 0F1 of rank 0\n"
            "action |   0     1     2     3\n"
            "rank 0 |  0F0  [0B0]  0F1   0B1\n"
            "rank 1 |  1F0  [1F1]  1B0   1B1\n");
}

TEST_F(VerifyCommand, ShowsTheCycleOfATransportThatHangs) {
  write("late.csv",
        "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
        "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");

  const Ran ran = command("verify " + path("late.csv"));
  const json verdict = json::parse(command("verify " + path("late.csv") + " --json").text);

  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(ran.text, HasSubstr("deadlock-free: rendezvous no, capacity 1 yes, unbounded yes\n"));
  EXPECT_THAT(ran.text, HasSubstr("[0SEND_F1]"));
  EXPECT_THAT(ran.text, HasSubstr("[1SEND_B0]"));
  EXPECT_EQ(verdict["deadlock_free"],
            json::parse(R"({"rendezvous": false, "capacity 1": true, "unbounded": true})"));
  EXPECT_THAT(verdict["cycles"]["rendezvous"].get<std::string>(),
              HasSubstr("rank 1 waits in 1SEND_B0 for rank 0 to get past 0SEND_F1"));
}

/// Most memory that any command of this process has held so far.
double most_memory() {
  rusage usage{};
  getrusage(RUSAGE_CHILDREN, &usage);
  return static_cast<double>(usage.ru_maxrss);
}

TEST_F(VerifyCommand, ProvesWithoutASecondProgram) {
  const std::string schedule = " 1f1b -p 256 -m 2048";  // a million actions
  ASSERT_EQ(command("simulate" + schedule).code, 0);
  const double simulated = most_memory();

  const Ran ran = command("verify" + schedule);

  EXPECT_THAT(ran.text, HasSubstr("rendezvous yes, capacity 1 yes, unbounded yes\n"));
  EXPECT_LT(most_memory(), 1.3 * simulated);
}

TEST_F(VerifyCommand, InsertsMessages_WhereTheProofNeedsThem) {
  // Pairs, copies that reduce their gradients, and ops that take no time.
  for (const std::string schedule :
       {"dualpipe-v -p 2 -m 4", "chimera -p 2 -m 4", "1f1b --w 0 --i 0 --f 0"})
    EXPECT_THAT(command("verify " + schedule).text,
                HasSubstr("deadlock-free with sends and receives inserted: rendezvous yes, "
                          "capacity 1 yes, unbounded yes\n"))
        << schedule;
}

TEST_F(VerifyCommand, JsonHasTheVerdictForAProgram) {
  const json good = json::parse(command("verify gpipe-lifo -p 2 -m 2 --json").text);
  EXPECT_EQ(good["valid"], true);
  EXPECT_EQ(good["actions"], 8);
  EXPECT_EQ(good["violations"], json::array());
  EXPECT_EQ(good["same_bits"], false);
  EXPECT_THAT(good["accumulation"].get<std::string>(), StartsWith("stage 0 adds the gradient"));
  EXPECT_EQ(good["per_rank"][1], json::parse(R"({"peak_activation": 2.0, "peak_bytes": 2.0})"));
  const json channel = {
      {"source", 0}, {"destination", 1}, {"direction", "F"}, {"minimal", 1}, {"sufficient", 1}};
  EXPECT_EQ(good["capacity"][0], channel);

  write("bad.csv", "0F0,0F0,0B0\n");
  const json bad = json::parse(command("verify " + path("bad.csv") + " --json").text);
  EXPECT_EQ(bad["valid"], false);
  EXPECT_EQ(bad["same_bits"], nullptr);
  EXPECT_EQ(bad["violations_by_rule"], json::parse(R"({"completeness": 1})"));
  const json first = {{"rank", 0}, {"position", 0}};
  const json violation = {{"rule", 2},
                          {"name", "completeness"},
                          {"rank", 0},
                          {"position", 1},
                          {"action", "0F0"},
                          {"others", json::array({first})},
                          {"sentence", "0F0 appears a second time (first at position 0)"}};
  EXPECT_EQ(bad["violations"], json::array({violation}));
}

TEST_F(VerifyCommand, WritesTheFilesOfAScheduleThatRuns) {
  const Ran ran =
      command("verify 1f1b --csv " + path("a.csv") + " --svg " + path("a.svg") + " --html " +
              path("a.html") + " --trace " + path("a.json") + " --plan " + path("plan.json"));

  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(ran.text, StartsWith("1f1b p=4 m=8: valid"));
  EXPECT_EQ(files(), 5U);
  EXPECT_EQ(read("a.svg"), command("show 1f1b --svg").text);
}

TEST_F(VerifyCommand, DrawsNoPictureOfAScheduleThatCannotRun) {
  write("bad.csv", "0B0,0F0\n");

  const Ran ran = command("verify " + path("bad.csv") + " --svg " + path("a.svg") + " --plan " +
                          path("p.json"));

  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.text,
              HasSubstr("millrace: --svg is not written: a schedule that cannot run has no times"));
  EXPECT_EQ(files(), 2U);  // bad.csv and the plan
}

TEST_F(VerifyCommand, ReportsTheMemoryLimitAndStillDraws) {
  const Ran ran = command("verify 1f1b --memory-limit 0.5p --svg " + path("a.svg"));

  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.text,
              StartsWith("rule 9 (memory), rank 0, action 3 (0F3): memory reaches 4; the limit is "
                         "2\n"));
  EXPECT_EQ(files(), 1U);
}

TEST_F(VerifyCommand, ChecksALimitPerRank) {
  // 1F1B holds 3, 2 and 1 micro-batches.
  EXPECT_EQ(command("verify 1f1b -p 3 -m 6 --memory-limit 3,2,1").code, 0);
  const Ran ran = command("verify 1f1b -p 3 -m 6 --memory-limit 1p,1,1");
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.text, HasSubstr("rank 1"));
  EXPECT_THAT(ran.text, HasSubstr("memory reaches 2; the limit is 1"));
}

}  // namespace
}  // namespace millrace::test
