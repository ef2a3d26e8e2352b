// Validation, the best checkpoint and early stopping by their flags: in one process, under launch,
// over resume, and wrong values.
#include <filesystem>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "cli/command_test.hpp"
#include "cli/launched.hpp"

namespace millrace::test {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

/// The rate rises: the loss falls, then grows.
const std::string kRisingJob =
    "--model mlp:64-16-12-10 --batch-size 64 --epochs 1000 --optimizer sgd --clip-norm none "
    "--lr 2 --warmup 300 --validation 0.2 --validate-every 5 --early-stopping 3 ";

class ValidationCommand : public CommandTest {
 protected:
  /// kRisingJob in one process, saving in `folder`; stopped early.
  [[nodiscard]] nlohmann::json stopped(const std::string& folder, const std::string& more) const {
    const Ran ran =
        command(more + kRisingJob + "--keep 1 --keep-best loss --json --save " + path(folder));
    EXPECT_EQ(ran.code, 0) << ran.text;
    return json_in(ran.text);
  }

  [[nodiscard]] std::string names(const std::string& folder) const {
    std::string text;
    const Ran ran = command("checkpoint ls " + path(folder));
    EXPECT_EQ(ran.code, 0) << ran.text;
    return ran.text;
  }
};

TEST_F(ValidationCommand, ProgressLogMetricsAndPage_ShowIt) {
  const std::string files =
      " --log " + path("a.csv") + " --metrics " + path("a.prom") + " --report " + path("a.html");
  const Ran ran = command(
      "train -p 2 -m 2 --steps 4 --batch-size 64 --validate-every 2 --validation 0.1" + files);
  EXPECT_EQ(ran.code, 0) << ran.text;
  EXPECT_THAT(ran.text, HasSubstr("  validation loss "));
  EXPECT_THAT(ran.text, HasSubstr("  accuracy "));
  EXPECT_THAT(read("a.csv"), HasSubstr(",validation_loss,validation_accuracy,"));
  EXPECT_THAT(read("a.prom"), HasSubstr("\nmillrace_validation_loss "));
  EXPECT_THAT(read("a.html"), HasSubstr("aria-label=\"validation loss\""));
}

TEST_F(ValidationCommand, HeldOutSamples_AreNotTrainedOn) {
  const std::string job = "train --json -p 2 -m 2 --epochs 2 ";
  const auto plain = json_in(command(job).text);
  const auto held = json_in(command(job + "--validation 0.25").text);
  const auto other = json_in(command(job + "--validation digits").text);
  EXPECT_EQ(held["settings"]["train_samples"].get<int>() +
                held["settings"]["validation_samples"].get<int>(),
            plain["settings"]["train_samples"].get<int>());
  EXPECT_NE(held["weights_hash"], plain["weights_hash"]);
  EXPECT_EQ(other["weights_hash"], plain["weights_hash"]);
  EXPECT_EQ(other["validations"].back()["loss"], other["test_loss"]);
  EXPECT_FALSE(plain.contains("validations"));
  EXPECT_FALSE(plain["settings"].contains("validation"));
}

TEST_F(ValidationCommand, Text_IsReportedInBits) {
  write("other.txt", "And it came to pass that he went away from the city, and they with him.\n");
  const std::string job =
      "train --model gpt:layers=1,d=8,heads=2,context=8 --data text --batch-size 4 --steps 2 -p 2 "
      "-m 2 --validate-every 2 --validation ";
  const std::string other = "text:" + path("other.txt");
  for (const std::string& validation : {std::string("0.01"), other, other + " --lengths bucket"}) {
    const Ran ran = command(job + validation);
    EXPECT_EQ(ran.code, 0) << ran.text;
    EXPECT_THAT(ran.text, HasSubstr(" bits per character\n"));
  }
  write("bytes.txt", std::string(40, '\x01'));
  expect_refused(
      job + "text:" + path("bytes.txt"), 65, "has byte 1, which the training data has not");
}

TEST_F(ValidationCommand, EarlyStop_IsTheLastLineAndSucceeds) {
  const Ran ran = command("train -p 2 -m 2 " + kRisingJob + "--min-delta 0.001");
  EXPECT_EQ(ran.code, 0) << ran.text;
  const std::string last = ran.text.substr(ran.text.rfind('\n', ran.text.size() - 2) + 1);
  EXPECT_THAT(last,
              MatchesRegex("stopped early: validation loss did not improve by 0.001 in 3 "
                           "validations; it was [0-9.]+ after step [0-9]+\n"));
}

TEST_F(ValidationCommand, LaunchAndResume_KeepCountAndBest) {
  const auto one = stopped("one", "train -p 3 -m 2 ");
  const auto many = stopped("many", "launch -n 3 -- train -m 2 ");
  EXPECT_EQ(many["weights_hash"], one["weights_hash"]);
  EXPECT_EQ(many["stopped_early"], one["stopped_early"]);

  // Until the first validation without improvement, then on from there.
  const std::int64_t last = one["validations"].back()["step"].get<std::int64_t>();
  const std::string steps = "--save " + path("halves") + " --keep-best loss --keep 1 --json ";
  const std::string job = kRisingJob.substr(0, kRisingJob.find("--epochs")) +
                          kRisingJob.substr(kRisingJob.find("--optim"));
  for (const std::int64_t stop : {last - 7, std::int64_t{1000}}) {
    const Ran ran = command("train -p 3 -m 2 --lr-schedule constant --resume auto --steps " +
                            std::to_string(stop) + " " + job + steps);
    EXPECT_EQ(ran.code, 0) << ran.text;
  }
  const auto straight = json_in(command("train -p 3 -m 2 --lr-schedule constant --steps 1000 " +
                                        job + "--json --keep-best loss --save " + path("straight"))
                                    .text);
  const auto again =
      json_in(command("launch -n 3 -- train --json --resume " + path("halves")).text);
  EXPECT_TRUE(again["finished"].get<bool>());
  EXPECT_EQ(again["stopped_early"], straight["stopped_early"]);
  EXPECT_EQ(again["weights_hash"], straight["weights_hash"]);
}

/// The figures, but for the seconds.
nlohmann::json figures_of(nlohmann::json run) {
  for (auto& validation : run["validations"]) validation.erase("seconds");
  return {{"validations", run["validations"]},
          {"weights", run["weights_hash"]},
          {"stopped", run["stopped_early"]}};
}

TEST_F(ValidationCommand, GridsOverTransports_HaveFiguresOfOneProcess) {
  const std::string tree = "-p 2 --accumulate-order tree ";
  const auto one = figures_of(stopped("one", "train -m 4 " + tree));
  EXPECT_EQ(figures_of(stopped("passes", "train -m 2 --accumulate 2 " + tree)), one);
  EXPECT_EQ(figures_of(stopped("threads", "train -m 2 -d 2 " + tree)), one);
  const auto checkpoints = [&](const std::string& folder) {
    const std::string all = names(folder);
    return std::regex_replace(all, std::regex("[^ ]*/(step-[0-9]*)[^\n]*(, best)?"), "$1$2");
  };
  for (const std::string link : {"shm", "ipc", "tcp"}) {
    const std::string job = "launch --endpoint " + link + " -n ";
    EXPECT_EQ(figures_of(stopped(link + "2", job + "2 -- train -m 4 " + tree)), one);
    EXPECT_EQ(figures_of(stopped(link + "22", job + "2 -- train -m 2 -d 2 " + tree)), one);
    EXPECT_EQ(
        figures_of(stopped(link + "4", job + "4 -- train -m 2 -d 2 --shard-optimizer " + tree)),
        one);
    EXPECT_EQ(checkpoints(link + "4"), checkpoints("one"));
  }
}

/// Each validation would last for seconds.
TEST_F(ValidationCommand, StopDuringIt_EndsBeforeItsResult) {
  const std::string work =
      "train --json --model gpt:layers=1,d=8,heads=2,context=2 --data text --batch-size 1 -m 1 "
      "-p 2 --steps 1 --validation text --validate-every 1 --inspect-gradients ";
  for (const std::string how : {"", "launch -n 2 -- "}) {
    const std::string log = std::to_string(how.size()) + ".jsonl";
    Command run(how + work + "--save " + path(log) + "-saved --log " + path(log));
    while (text_of(run.errors_path()).find("not finite") == std::string::npos && !run.has_ended())
      std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // until the step has ended, too
    run.signal(SIGTERM);
    const Outcome outcome = run.end();
    EXPECT_EQ(outcome.code, 143) << outcome.errors;
    EXPECT_THAT(outcome.errors, HasSubstr("stopped after step 1, newest checkpoint "));
    EXPECT_THAT(read(log), HasSubstr("\"validation_loss\":null"));
  }
}

TEST_F(ValidationCommand, Best_IsListedExportedAndResumed) {
  const auto run = stopped("run", "train -p 2 -m 2 ");
  const nlohmann::json* best = &run["validations"][0];
  for (const auto& validation : run["validations"])
    if (validation["loss"].get<double>() < (*best)["loss"].get<double>()) best = &validation;
  const std::string step = std::to_string((*best)["step"].get<std::int64_t>());

  const std::string listed = names("run");
  EXPECT_EQ(std::count(listed.begin(), listed.end(), '\n'), 2) << listed;
  EXPECT_THAT(listed, MatchesRegex("(.|\n)*/step-0*" + step + "  [^\n]*, best by loss: [0-9.]+\n"));
  EXPECT_THAT(command("checkpoint show " + path("run")).text,
              HasSubstr("\nvalidation  loss of step "));
  EXPECT_EQ(command("checkpoint verify " + path("run/best")).code, 0);
  EXPECT_EQ(
      command("checkpoint export " + path("run/best") + " --output " + path("w.safetensors")).code,
      0);
  const Ran resumed =
      command("train --resume best --save " + path("run") + " --early-stopping 0 --steps 1000");
  EXPECT_THAT(resumed.text, HasSubstr("/step-0"));
  EXPECT_THAT(resumed.text, HasSubstr("newer checkpoints get the prefix superseded-: "));
}

TEST_F(ValidationCommand, BadValues_GetOneMessage) {
  const std::string valid = "train --validation 0.1 ";
  expect_refused("train --validation 1.5", 2, "--validation 1.5: must be above 0 and below 1, or");
  expect_refused("train --validation nan", 2, "--validation nan: must be above 0 and below 1, or");
  expect_refused("train --validation foo", 2, "--validation foo: unknown data 'foo'");
  expect_refused("train --validation text", 2, "--validation text: text is text, but");
  expect_refused(valid + "--validate-every 0", 2, "--validate-every 0: must be mini-batches, as");
  expect_refused(valid + "--validate-every 0ep", 2, "--validate-every 0ep: must be");
  expect_refused(valid + "--keep-best f1", 2, "--keep-best f1: must be loss, accuracy or none");
  expect_refused(valid + "--keep-best loss", 2, "--keep-best loss: needs --save");
  expect_refused(valid + "--early-stopping -1", 2, "--early-stopping -1: must be from 0 to");
  expect_refused(valid + "--min-delta -1", 2, "--min-delta -1: must be at least 0 and finite");
  expect_refused("train --early-stopping 3", 2, "--early-stopping 3: needs --validation");
  expect_refused("train --validate-every 3", 2, "--validate-every 3: needs --validation");
  expect_refused("train --resume best", 2, "--resume best: needs --save");
  ASSERT_EQ(command("train --model mlp:64-8-10 --steps 1 -p 1 --save " + path("plain")).code, 0);
  const std::string none = path("plain") + ": has no best checkpoint";
  expect_refused("train --resume best --save " + path("plain"), 65, none.c_str());
  expect_refused("checkpoint verify " + path("plain/best"), 65, none.c_str());
}

}  // namespace
}  // namespace millrace::test
