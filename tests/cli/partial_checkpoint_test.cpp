// A checkpoint inside an update at the command: it is shown and verified like any other, and train
// goes on from it as the run that saved it had its micro-batches shared out.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/training/trainer.hpp"
#include "support/test_options.hpp"
#include "tests/cli/command.hpp"
#include "tests/training/sample_files.hpp"

namespace millrace::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing_files::Folder;

const char* const kModel = "mlp:64-16-16-10,dropout=0.1";

/// Eight steps of 100 samples, in three passes of four micro-batches.
TestOptions options_of(const std::string& folder) {
  TestOptions options;
  options.pipeline.shape.ranks = 2;
  options.pipeline.shape.micro_batches = 4;
  options.step.accumulate = 3;
  options.run.executor = "sequential";
  options.fit.batch_size = 100;
  options.fit.steps = 8;
  options.step.learning_rate = {.base = 3e-3, .total_updates = 8};
  options.save.folder = folder;
  options.save.every_steps = 2;
  options.save.run = {{"data", "digits"}};
  return options;
}

class PartialCheckpoint : public testing::Test {
 protected:
  /// Stops behind eight micro-batches of the sixth step.
  PartialCheckpoint()
      : folder_(std::string("cli_partial_") +
                testing::UnitTest::GetInstance()->current_test_info()->name()),
        place_(folder_.path() + "/saved") {
    const TrainTest data = load_data("digits", 1);
    Trainer whole = trainer_of(parse_model(kModel), options_of(""));
    whole.fit(data.train);
    weights_ = whole.weights_hash();
    Trainer stopped = trainer_of(parse_model(kModel), options_of(place_));
    std::stop_source stop;
    int passes = 0;
    stopped.on_pass = [&] {
      if (++passes == 12) stop.request_stop();
    };
    stopped.fit(data.train, stop.get_token());
  }

  Folder folder_;
  std::string place_;
  std::string weights_;
};

TEST_F(PartialCheckpoint, IsShownVerifiedAndCompared) {
  EXPECT_THAT(
      command("checkpoint ls " + place_).text,
      AllOf(HasSubstr("step-0000000005-plus-0000000008  5 updates, epoch 1, 8 micro-batches "
                      "of the next update, "),
            HasSubstr("step-0000000004  4 updates")));
  EXPECT_THAT(command("checkpoint show " + place_).text,
              AllOf(HasSubstr("continues   epoch 1, mini-batch 6, 8 micro-batches of the next "
                              "update"),
                    HasSubstr("layers.0.weight/gradient  f32"),
                    HasSubstr("run, accumulate: 3")));
  EXPECT_THAT(command("checkpoint verify " + place_).text, HasSubstr("every hash holds"));
  const Ran differs = command("checkpoint diff " + place_ + " " + place_ + "/step-0000000004");
  EXPECT_EQ(differs.code, 1);
  EXPECT_THAT(differs.text,
              AllOf(HasSubstr("micro-batches of the next update: 8, 0"),
                    HasSubstr("layers.0.weight/gradient is only in the first")));
  const std::string file = folder_.path() + "/weights.safetensors";
  EXPECT_EQ(command("checkpoint export " + place_ + " --output " + file).code, 0);
  EXPECT_EQ(
      command("train --steps 1 -p 1 --model " + std::string(kModel) + " --weights " + file).code,
      0);
}

TEST_F(PartialCheckpoint, Resumed_EndsWithTheSameWeights) {
  for (const std::string subcommand : {"train -p 3 --executor sequential",
                                       "train -p 1 -m 2",
                                       "train -p 2 --accumulate 6 --schedule gpipe",
                                       "launch -n 3 -- train"}) {
    const Ran resumed = command(subcommand + " --resume " + place_);
    EXPECT_EQ(resumed.code, 0) << resumed.text;
    EXPECT_THAT(resumed.text, Not(HasSubstr("changed micro_batches"))) << subcommand;
    EXPECT_THAT(resumed.text, HasSubstr("weights " + weights_)) << subcommand;
  }
}

TEST_F(PartialCheckpoint, OtherPassBoundary_IsRejected) {
  const Ran refused = command("train -m 6 --resume " + place_);
  EXPECT_EQ(refused.code, 78);
  EXPECT_THAT(refused.text,
              HasSubstr("step-0000000005-plus-0000000008 was saved inside an update, behind 8 of "
                        "its 12 micro-batches: where a pass begins differs"));
  const Ran others = command("train -m 5 --resume " + place_);
  EXPECT_EQ(others.code, 78);
  EXPECT_THAT(others.text, HasSubstr("the checkpoint has 12, this training 10"));
  // Between two updates any number will do.
  EXPECT_EQ(command("train -m 5 --resume " + place_ + "/step-0000000004").code, 0);
}

}  // namespace
}  // namespace millrace::test
