// millrace import and split as typed: from another program's trace to a cost file, from layers to
// stages.
#include <algorithm>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "cli/command_test.hpp"

namespace millrace::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

class ImportCommand : public CommandTest {
 protected:
  /// A trace as PyTorch's profiler exports one for a rank, made by hand: the members of its events
  /// and the doubling of named regions for host and device are Kineto's, the times are ours.
  void write_kineto(const std::string& name, int pid, int forward, int backward) const {
    const std::string id = std::to_string(pid);
    std::string events = R"({"ph":"M","name":"process_name","pid":)" + id +
                         R"(,"tid":0,"args":{"name":"python"}},)"
                         R"({"ph":"X","cat":"cpu_op","name":"aten::mm","pid":)" +
                         id + R"(,"tid":)" + id + R"(,"ts":10.5,"dur":3,"args":{"External id":1}})";
    for (int micro_batch = 0; micro_batch < 3; ++micro_batch)
      for (const auto& [what, length] : {std::pair{"Forward ", forward}, {"Backward ", backward}})
        for (const auto& [category, thread, share] :
             {std::tuple{"user_annotation", id, 7}, {"gpu_user_annotation", std::string("7"), 1}})
          events += std::string(R"(,{"ph":"X","cat":")") + category + R"(","name":")" + what +
                    std::to_string(micro_batch) + R"(","pid":)" + id + R"(,"tid":)" + thread +
                    R"(,"ts":)" + std::to_string(100 * micro_batch) + R"(.25,"dur":)" +
                    std::to_string((length + micro_batch) * share) +
                    R"(,"args":{"External id":2}})";
    write(name,
          R"({"schemaVersion":1,"deviceProperties":[],"traceEvents":[)" + events +
              R"(],"traceName":"rank.json"})");
  }
};

TEST_F(ImportCommand, OwnTrace_ReturnsItsCosts) {
  ASSERT_EQ(command("show zb-h1 -p 3 -m 6 --f 3,1,2 --i 2 --w 1.5 --trace " + path("t.json")).code,
            0);

  const Ran ran = command("import " + path("t.json") + " --out " + path("c.json"));

  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.text, "millrace: medians of 18 F 18 I 18 W over 3 stages and 6 micro-batches\n");
  const auto makespan = [](const std::string& options) {
    const Ran simulated = command("simulate 1f1b -p 3 -m 9 --json " + options);
    return json::parse(simulated.text)["makespan"].get<double>();
  };
  EXPECT_NEAR(makespan("--costs " + path("c.json")), makespan("--f 3,1,2 --i 2 --w 1.5"), 1e-9);
}

TEST_F(ImportCommand, TorchPipelineTraces_AreCompared) {
  const std::string traces = MILLRACE_SOURCE_DIR "/tests/traces/zb-v-rank";
  ASSERT_EQ(command("show zb-v -p 2 -m 4 --for torch --csv " + path("zb-v.csv")).code, 0);

  const Ran ran = command("import " + traces + "0.json " + traces + "1.json --ranks 2 --trace " +
                          path("run.json") + " --out " + path("c.json"));
  const Ran compared = command("compare " + path("zb-v.csv") + " " + path("run.json") +
                               " --costs " + path("c.json"));

  EXPECT_EQ(ran.text, "millrace: medians of 16 F 16 I 16 W over 4 stages and 4 micro-batches\n");
  EXPECT_EQ(compared.code, 0) << compared.text;
  EXPECT_THAT(compared.text, HasSubstr("between passes: dispatch, messages, waiting"));
  EXPECT_THAT(command("import " + path("run.json") + " --trace " + path("again.json")).text,
              HasSubstr("--trace: needs traces of PyTorch's pipeline engine or of Primus"));
}

TEST_F(ImportCommand, KinetoTracePerRank_IsRead) {
  write_kineto("rank0.json", 4711, 20, 40);
  write_kineto("rank1.json", 4700, 30, 50);
  ASSERT_EQ(std::system(("gzip " + path("rank1.json")).c_str()), 0);

  const Ran ran = command("import " + path("rank0.json") + " " + path("rank1.json.gz") +
                          " --forward 'Forward {micro_batch}' --backward 'Backward {micro_batch}' "
                          "--input '' --weight '' --stage-from file --out " +
                          path("c.json"));
  const json costs = json::parse(read("c.json"));

  const std::string assumed = "I and W are half of B each, which the trace does not split";
  EXPECT_EQ(ran.text,
            "millrace: medians of 6 F 6 B over 2 stages and 3 micro-batches\n"
            "millrace: assumed: " +
                assumed + "\n");
  EXPECT_EQ(costs["assumed"], assumed);
  for (const std::string subcommand :
       {"simulate 1f1b", "search --budget 0", "compare 1f1b,gpipe"}) {
    const Ran used = command(subcommand + " -p 2 -m 4 --costs " + path("c.json"));
    EXPECT_THAT(used.text,
                HasSubstr("Times in s, from " + path("c.json") + ".\nAssumed: " + assumed + ".\n"));
  }
  EXPECT_THAT(command("sweep 1f1b -p 2 --costs " + path("c.json")).text,
              HasSubstr("millrace: " + path("c.json") + " assumes: " + assumed + "\n"));
  EXPECT_EQ(
      json::parse(command("simulate 1f1b -p 2 --json --costs " + path("c.json")).text)["unit"],
      "s");
  EXPECT_EQ(costs["unit"], "s");
  EXPECT_NEAR(costs["forward"][0], 21e-6, 1e-15);
  EXPECT_NEAR(costs["forward"][1], 31e-6, 1e-15);
  EXPECT_NEAR(costs["backward"][1], 51e-6, 1e-15);
}

TEST_F(ImportCommand, ReadsATraceThatAKilledRecorderLeft) {
  write("cut.json",
        R"([{"ph":"X","name":"0F0","ts":0,"dur":2},{"ph":"X","name":"0B0","ts":2,"dur":4},{"ph":)");

  const Ran ran = command("import " + path("cut.json") + " --out " + path("c.json"));

  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(
      ran.text,
      StartsWith("millrace: " + path("cut.json") +
                 " ends within its list of events: read to the last whole one, 2 in all\n"));
}

TEST_F(ImportCommand, RefusesInOneMessage) {
  write("empty.json", "[]");
  write("broken.json", "[{]");
  write("broken.json.gz", "\x1f\x8b garbage");
  const std::vector<std::tuple<std::string, int, std::string>> cases = {
      {path("empty.json"), 2, "no event of the trace is an F"},
      {path("broken.json"), 65, path("broken.json") + ":1:3: this is not JSON"},
      {path("empty.json") + " --stage-from rank", 2, "--stage-from rank: must be name, pid"},
      {path("empty.json") + " --forward 'F{mb}'", 2, "a pattern has {mb}; known are {stage}"},
      {path("empty.json") + " --out /nowhere/c.json", 2, "--out /nowhere/c.json cannot be written"},
  };
  for (const auto& [arguments, code, message] : cases) {
    const Ran ran = command("import " + arguments);
    EXPECT_EQ(ran.code, code) << arguments;
    EXPECT_THAT(ran.text, StartsWith("millrace: " + message)) << arguments;
    EXPECT_EQ(std::count(ran.text.begin(), ran.text.end(), '\n'), 1) << arguments;
  }
  EXPECT_NE(command("import " + path("broken.json.gz")).code, 0);
}

class SplitCommand : public CommandTest {
 protected:
  /// Six layers; cut evenly the last stage would take 9 + 9, cut by time none more than 12.
  void write_layers() const {
    write("layers.json",
          R"({"millrace_costs": 1, "unit": "s", "ranks": 6, "chunks": 1,
              "forward": [1, 1, 1, 2, 3, 3], "input": [1, 1, 1, 2, 3, 3],
              "weight": [1, 1, 1, 2, 3, 3], "memory_forward": [1, 1, 1, 1, 1, 1]})");
  }
};

TEST_F(SplitCommand, SplitsByTimeAndPrintsTheBalance) {
  write_layers();

  const Ran ran = command("split " + path("layers.json") + " -p 3");

  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.text,
            "stage  layers  time  of the slowest\n"
            "0      0 to 2     9         60.00 %\n"
            "1      3 to 4    15        100.00 %\n"
            "2      5 to 5     9         60.00 %\n"
            "\nslowest stage 15 s; cut evenly 18 s\n"
            "first layers  3,5\n");
}

TEST_F(SplitCommand, Partition_IsOptimalWithStageCosts) {
  write_layers();
  const json cut = json::parse(command("split " + path("layers.json") + " -p 2 -v 2 --json").text);

  // Every cut of six layers of 3, 3, 3, 6, 9, 9 into four.
  const std::vector<double> times = {3, 3, 3, 6, 9, 9};
  const auto sum = [&](int from, int to) {
    double total = 0;
    for (int i = from; i < to; ++i) total += times[static_cast<std::size_t>(i)];
    return total;
  };
  double least = 1e9;
  for (int a = 1; a < 6; ++a)
    for (int b = a + 1; b < 6; ++b)
      for (int c = b + 1; c < 6; ++c)
        least = std::min(least, std::max({sum(0, a), sum(a, b), sum(b, c), sum(c, 6)}));
  EXPECT_EQ(cut["slowest"], least);
  EXPECT_EQ(cut["boundaries"].size(), 5U);
  EXPECT_EQ(cut["v"], 2);

  ASSERT_EQ(command("split " + path("layers.json") + " -p 3 --out " + path("c.json")).code, 0);
  const json simulated =
      json::parse(command("simulate 1f1b -p 3 -m 4 --json --costs " + path("c.json")).text);
  EXPECT_EQ(simulated["per_rank"][0]["busy"], 4 * 9);
  EXPECT_EQ(simulated["per_rank"][1]["busy"], 4 * 15);
}

TEST_F(SplitCommand, RefusesInOneMessage) {
  write_layers();
  EXPECT_EQ(command("split " + path("layers.json") + " -p 7").text,
            "millrace: cannot cut 6 layers into 7 stages: every stage needs at least one layer\n");
  EXPECT_THAT(command("split " + path("layers.json")).text,
              StartsWith("millrace: split needs --ranks"));
  EXPECT_EQ(command("split " + path("none.json") + " -p 2").code, 2);
}

}  // namespace
}  // namespace millrace::test
