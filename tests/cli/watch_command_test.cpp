// A run that is watched, as a user meets it: the log is whole whenever the run ends and goes on
// with it, and metrics are what Prometheus reads.
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/command_test.hpp"
#include "tests/cli/launched.hpp"

namespace millrace::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

const std::string kWatchedJob =
    "train --model mlp:64-16-16-10 -m 4 --seed 3 --executor sequential --steps 6 ";
const std::string kLaunched = "train --model mlp:64-16-16-10 -m 4 --seed 3 --steps 6 ";

class Watch : public CommandTest {
 protected:
  [[nodiscard]] std::vector<std::string> lines_of(const std::string& name) const {
    std::vector<std::string> lines;
    std::istringstream text(read(name));
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return lines;
  }

  [[nodiscard]] std::vector<json> records_of(const std::string& name) const {
    std::vector<json> records;
    for (const std::string& line : lines_of(name)) records.push_back(json::parse(line));
    return records;
  }

  /// "step loss" of every record: all that has to be the same in every run.
  [[nodiscard]] std::vector<std::string> losses_in(const std::string& name) const {
    std::vector<std::string> losses;
    for (const json& record : records_of(name))
      losses.push_back(record["step"].dump() + " " + record["loss"].dump() + " " +
                       record["gradient_norm"].dump());
    return losses;
  }
};

TEST_F(Watch, LogsEveryStep_LossesEqualEpochs) {
  Command run("train --model mlp:64-16-10 -p 2 -m 4 --epochs 2 --json --log " + path("log.jsonl"));
  const Outcome ran = run.end();
  ASSERT_EQ(ran.code, 0) << ran.errors;
  const auto records = records_of("log.jsonl");

  ASSERT_EQ(records.size(), 24U);
  std::map<std::int64_t, double> sums, weights;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const json& record = records[i];
    EXPECT_EQ(record["step"], i + 1);
    EXPECT_EQ(record["ranks"].size(), 2U);
    const double samples = record["samples"];
    sums[record["epoch"]] += record["loss"].get<double>() * samples;
    weights[record["epoch"]] += samples;
  }
  const json told = json::parse(ran.output);
  for (std::size_t epoch = 0; epoch < 2; ++epoch) {
    const auto number = static_cast<std::int64_t>(epoch);
    EXPECT_NEAR(sums[number] / weights[number], told["losses"][epoch].get<double>(), 1e-12);
  }
}

TEST_F(Watch, ProcessesLogWhatOneProcessDoes) {
  ASSERT_EQ(command(kWatchedJob + "-p 2 --log " + path("one.jsonl")).code, 0);
  const Ran many = command("launch -n 2 -- " + kLaunched + "--log " + path("many.jsonl"));

  ASSERT_EQ(many.code, 0) << many.text;
  EXPECT_EQ(losses_in("many.jsonl"), losses_in("one.jsonl"));
  for (const json& record : records_of("many.jsonl")) EXPECT_EQ(record["ranks"].size(), 2U);
}

/// Behind the checkpoint there are records of steps that will run again, and half a line.
TEST_F(Watch, ResumedRun_ContinuesItsLog) {
  for (const std::string log : {"log.jsonl", "log.csv"}) {
    const std::string saved = path("saved_" + log);
    ASSERT_EQ(
        command(kWatchedJob + "-p 2 --save " + saved + " --save-every 4 --log " + path(log)).code,
        0);
    const auto whole = lines_of(log);
    std::ofstream(path(log), std::ios::app) << whole.back().substr(0, 20);
    const Ran resumed =
        command(kWatchedJob + "-p 2 --resume " + saved + "/step-0000000004 --log " + path(log));

    ASSERT_EQ(resumed.code, 0) << resumed.text;
    const auto lines = lines_of(log);
    ASSERT_EQ(lines.size(), whole.size());
    const std::size_t kept = whole.size() - 2;
    for (std::size_t i = 0; i < kept; ++i) EXPECT_EQ(lines[i], whole[i]);
    for (std::size_t i = kept; i < whole.size(); ++i) {
      EXPECT_NE(lines[i], whole[i]);  // other times
      const std::size_t same = whole[i].find(log == "log.csv" ? ",true," : "\"skipped\"");
      const std::size_t fields = whole[i].find(log == "log.csv" ? ",false," : "\"skipped\"");
      EXPECT_EQ(lines[i].substr(0, std::min(same, fields)),
                whole[i].substr(0, std::min(same, fields)));
    }
  }
}

TEST_F(Watch, ReportAfterResume_HasLoggedSteps) {
  for (const std::string log : {"log.jsonl", "log.csv"}) {
    const std::string saved = path("saved_" + log);
    ASSERT_EQ(
        command(kWatchedJob + "-p 2 --save " + saved + " --save-every 4 --log " + path(log)).code,
        0);
    const std::string from = kWatchedJob + "-p 2 --resume " + saved + "/step-0000000004 --report " +
                             path("page.html") + " --metrics " + path("run.prom");
    const Ran with_log = command(from + " --log " + path(log));
    ASSERT_EQ(with_log.code, 0) << with_log.text;
    EXPECT_THAT(read("page.html"),
                AllOf(HasSubstr("<p class=\"quiet\">6 steps, 768 samples"),
                      testing::Not(HasSubstr("begins at step"))));
    EXPECT_THAT(read("run.prom"), HasSubstr("\nmillrace_steps_total 6\n"));
    ASSERT_EQ(command(from).code, 0);
    EXPECT_THAT(read("page.html"),
                AllOf(HasSubstr("<p class=\"quiet\">2 steps, 256 samples"),
                      HasSubstr("; begins at step 5, the steps before it are in no --log")));
  }
}

TEST_F(Watch, BeginsALogAnewWithoutAResume) {
  write("log.jsonl", "what was here\n");
  ASSERT_EQ(command(kWatchedJob + "-p 2 --log " + path("log.jsonl")).code, 0);
  EXPECT_EQ(records_of("log.jsonl").size(), 6U);
}

TEST_F(Watch, RefusesFilesInOneSentenceBeforeItTrains) {
  for (const auto& [flags, sentence] :
       {std::pair<std::string, std::string>("--log run.txt", "--log run.txt: must end in .jsonl"),
        {"--log .csv", "--log .csv: must end in .jsonl"},
        {"--metrics run.txt", "--metrics run.txt: must end in .prom"},
        {"--report run.htm", "--report run.htm: must end in .html"},
        {"--report " + path("no/run.html"), "cannot be written: No such file or directory"},
        {"--log " + path("no/log.csv"), "cannot be written: No such file or directory"},
        {"--metrics " + path("no/run.prom"), "cannot be written: No such file or directory"}}) {
    const Ran ran = command(kWatchedJob + "-p 2 " + flags);
    EXPECT_EQ(ran.code, 2) << flags;
    EXPECT_THAT(ran.text, HasSubstr(sentence));
    EXPECT_THAT(ran.text, testing::Not(HasSubstr("epoch 1/"))) << flags;
  }
  const Ran launched = command("launch -n 2 -- " + kLaunched + "--log run.txt");
  EXPECT_EQ(launched.code, 2);
}

TEST_F(Watch, RefusesToGoOnWithALogThatIsNone) {
  const std::string from = " --resume " + path("saved/step-0000000004") + " --log ";
  ASSERT_EQ(command(kWatchedJob + "-p 2 --save " + path("saved") + " --save-every 4 --log " +
                    path("two.csv"))
                .code,
            0);
  const auto before = read("two.csv");
  const Ran columns = command(kWatchedJob + "-p 3" + from + path("two.csv"));
  EXPECT_EQ(columns.code, 2);
  EXPECT_THAT(columns.text, HasSubstr("has the columns of another number of ranks"));
  EXPECT_EQ(read("two.csv"), before);
  write("foreign.jsonl", "{\"step\":1,\"loss\":1}\nsomething else\n");
  const Ran foreign = command(kWatchedJob + "-p 2" + from + path("foreign.jsonl"));
  EXPECT_EQ(foreign.code, 65);
  EXPECT_THAT(foreign.text, HasSubstr("line 2 is not a record of a step"));
  EXPECT_EQ(lines_of("foreign.jsonl").size(), 2U);
}

TEST_F(Watch, UnwritableLog_TrainsOnWithAWarning) {
  std::filesystem::create_symlink("/dev/full", path("full.jsonl"));
  const Ran ran = command(kWatchedJob + "-p 2 --log " + path("full.jsonl"));

  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.text,
              AllOf(HasSubstr("full.jsonl cannot be written: No space left on device; training "
                              "continues, the log ends here"),
                    HasSubstr("test accuracy")));
}

TEST_F(Watch, LeavesWholeLinesWhenItIsTerminated) {
  Command run(
      "train --model mlp:64-16-16-10 -p 2 -m 4 --steps 1000000 --lr-schedule constant "
      "--warmup 0 --log " +
      path("log.jsonl") + " --metrics " + path("run.prom") + " --report " + path("run.html"));
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  while (lines_of("log.jsonl").size() < 3 && Clock::now() < deadline) std::this_thread::yield();
  run.signal(SIGTERM);
  const Outcome outcome = run.end();

  EXPECT_EQ(outcome.code, 143) << outcome.errors;
  EXPECT_THAT(read("log.jsonl"), EndsWith("]}\n"));
  const auto records = records_of("log.jsonl");
  EXPECT_GE(records.size(), 3U);
  const std::string steps = records.back()["step"].dump();
  EXPECT_THAT(outcome.errors, HasSubstr("stopped after step " + steps + ", nothing saved"));
  EXPECT_THAT(read("run.prom"), HasSubstr("\nmillrace_step " + steps + "\n"));
  EXPECT_THAT(read("run.html"), HasSubstr("<p class=\"quiet\">" + steps + " steps, "));
}

/// Samples of a text in Prometheus' format. What the format does not allow is a failure.
std::map<std::string, double> samples_of(const std::string& text) {
  const std::regex help("# HELP ([a-z_]+) [^\\n]+"), type("# TYPE ([a-z_]+) (counter|gauge)");
  const std::regex sample(
      "([a-z_]+)(\\{[a-z]+=\"[^\"]*\"(,[a-z]+=\"[^\"]*\")*\\})? (-?[0-9.e+-]+|NaN|[+-]Inf)");
  std::map<std::string, double> samples;
  std::set<std::string> helped, typed;
  std::istringstream stream(text);
  EXPECT_THAT(text, EndsWith("\n"));
  for (std::string line; std::getline(stream, line);) {
    std::smatch match;
    if (std::regex_match(line, match, help)) {
      EXPECT_TRUE(helped.insert(match[1]).second) << line;
    } else if (std::regex_match(line, match, type)) {
      EXPECT_TRUE(typed.insert(match[1]).second) << line;
      const bool total = match[1].str().find("_total") != std::string::npos;
      EXPECT_EQ(match[2] == "counter", total) << line;
    } else if (std::regex_match(line, match, sample)) {
      EXPECT_TRUE(helped.contains(match[1]) && typed.contains(match[1])) << line;
      const std::string name = match[1].str() + match[2].str();
      EXPECT_TRUE(samples.emplace(name, std::stod(match[4])).second) << line;
    } else {
      ADD_FAILURE() << line;
    }
  }
  return samples;
}

TEST_F(Watch, Metrics_AreSumsOfTheLog) {
  const Ran ran =
      command(kWatchedJob + "-p 2 --log " + path("log.jsonl") + " --metrics " + path("run.prom"));
  ASSERT_EQ(ran.code, 0) << ran.text;
  const auto samples = samples_of(read("run.prom"));
  const auto records = records_of("log.jsonl");

  EXPECT_EQ(samples.at("millrace_steps_total"), 6);
  EXPECT_EQ(samples.at("millrace_step"), 6);
  EXPECT_EQ(samples.at("millrace_skipped_steps_total"), 0);
  EXPECT_EQ(samples.at("millrace_loss"), records.back()["loss"].get<double>());
  EXPECT_EQ(samples.at("millrace_learning_rate"), records.back()["learning_rate"].get<double>());
  double compute = 0, delay = 0;
  for (const json& record : records) {
    compute += record["ranks"][1]["compute"].get<double>();
    delay += record["ranks"][1]["bubble"]["delay"].get<double>();
  }
  const std::string rank = "{rank=\"1\",copy=\"0\",cause=\"";
  EXPECT_EQ(samples.at("millrace_rank_seconds_total" + rank + "compute\"}"), compute);
  EXPECT_EQ(samples.at("millrace_bubble_seconds_total" + rank + "delay\"}"), delay);
  EXPECT_EQ(files(), 2U);  // nothing temporary stays
}

TEST_F(Watch, ShowsTheFirstGradientsOfAllLayersOnce) {
  const std::string head = "gradients of step 1, before clipping";
  const Ran one = command(kWatchedJob + "-p 2 --inspect-gradients");
  const Ran many = command("launch -n 2 -- " + kLaunched + "--inspect-gradients");

  ASSERT_EQ(one.code, 0) << one.text;
  ASSERT_EQ(many.code, 0) << many.text;
  const auto table = [&](const std::string& text) {
    const std::size_t first = text.find(head);
    EXPECT_NE(first, std::string::npos) << text;
    EXPECT_EQ(text.find(head, first + 1), std::string::npos) << text;
    return text.substr(first, text.find("epoch 1/", first) - first);
  };
  EXPECT_THAT(table(one.text), AllOf(HasSubstr("layers.0 "), HasSubstr("layers.2 ")));
  EXPECT_EQ(table(many.text), table(one.text));
}

TEST_F(Watch, ReportsARunThatDiverges) {
  const Ran ran =
      command(kWatchedJob + "-p 2 --optimizer sgd --lr 1e30 --warmup 0 --max-skipped 2 --report " +
              path("run.html"));
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.text, HasSubstr("training diverged"));
  EXPECT_THAT(read("run.html"), AllOf(HasSubstr("s, 2 skipped"), HasSubstr("class=\"skipped\"")));
}

}  // namespace
}  // namespace millrace::test
