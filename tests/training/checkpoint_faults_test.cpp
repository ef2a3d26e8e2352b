// Storage that fails, at every call of a save: training goes on, the newest finished checkpoint
// loads, nothing older went before something newer was durable, and the next start leaves nothing
// unfinished.
#include <filesystem>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/training/checkpoint.hpp"
#include "tests/training/faulty_files.hpp"
#include "tests/training/sample_files.hpp"
#include "tests/training/saved_runs.hpp"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using testing::Each;
using testing::IsEmpty;
using testing::StartsWith;
using testing_files::Folder;
using testing_training::Crashed;
using testing_training::Fault;
using testing_training::FaultyFiles;
using testing_training::first_digits;
using testing_training::fit_steps;
using testing_training::Hasty;
using testing_training::names_in;
using testing_training::plain_options;

const char* const kSmall = "mlp:64-10";
constexpr int kKept = 2;

TrainerOptions small_options(const std::string& folder, std::shared_ptr<FileSystem> files) {
  TrainerOptions options = plain_options(1, 2);
  options.optimizer.kind = OptimizerKind::Momentum;
  options.batch_size = 10;
  options.steps = 4;
  options.save.folder = folder;
  options.save.every_steps = 1;
  options.save.keep = kKept;
  options.save.files = std::move(files);
  return options;
}

struct Outcome {
  int faults = 0;
  int warnings = 0;
  std::int64_t last_durable = 0;  // as the training was told
  bool crashed = false;
  std::string weights;
};

/// Four steps and as many saves, over a folder that has none.
Outcome train(const std::string& folder, const std::shared_ptr<FileSystem>& files) {
  Outcome outcome;
  Trainer trainer(parse_model(kSmall), small_options(folder, files));
  trainer.on_save = [&](const SaveReport& report) {
    outcome.faults += report.fault.empty() ? 0 : 1;
    outcome.warnings += report.warning.empty() ? 0 : 1;
    if (report.fault.empty()) outcome.last_durable = report.step;
  };
  try {
    trainer.fit(first_digits(20));
    outcome.weights = trainer.weights_hash();
  } catch (const Crashed&) {
    outcome.crashed = true;
  }
  return outcome;
}

class EveryCall : public testing::TestWithParam<Fault> {};

/// What the next start finds: it goes on from the newest checkpoint and ends with the same weights.
void expect_whole(const std::string& folder, const Outcome& outcome, const std::string& weights) {
  const auto places = find_checkpoints(folder);
  for (const CheckpointPlace& place : places) EXPECT_NO_THROW(Checkpoint(place.folder));
  if (outcome.last_durable > 0) {
    ASSERT_FALSE(places.empty());
    EXPECT_GE(places.front().step, outcome.last_durable);
    EXPECT_GE(places.size(), outcome.last_durable >= kKept ? 2U : 1U);
  }
  Trainer next(parse_model(kSmall), small_options(folder, std::make_shared<Hasty>()));
  if (!places.empty()) next.resume(folder);
  next.fit(first_digits(20));
  EXPECT_EQ(next.weights_hash(), weights);
  EXPECT_THAT(names_in(folder), Each(StartsWith("step-")));
}

TEST_P(EveryCall, LeavesTheNewestCheckpointWhole) {
  const Folder folder("faults_" + std::to_string(static_cast<int>(GetParam())));
  const auto count = std::make_shared<FaultyFiles>(GetParam(), -1);
  const Outcome whole = train(folder.path() + "/whole", count);
  EXPECT_EQ(whole.faults + whole.warnings, 0);
  EXPECT_EQ(whole.last_durable, 4);
  const bool crashes = GetParam() == Fault::Crash || GetParam() == Fault::CrashAfter;
  int told = 0;
  // Beyond the first: a folder that cannot be made ends the training before it begins.
  const int last = count->calls() - (GetParam() == Fault::CrashAfter ? 1 : 0);
  for (int at = crashes ? 0 : 2; at < last; ++at) {
    const std::string place = folder.path() + "/" + std::to_string(at);
    const auto files = std::make_shared<FaultyFiles>(GetParam(), at);
    const Outcome outcome = train(place, files);
    EXPECT_EQ(outcome.crashed, crashes);
    if (!crashes) {
      EXPECT_EQ(outcome.weights, whole.weights) << "call " << at;
    }
    told += outcome.faults + outcome.warnings > 0 ? 1 : 0;
    if (GetParam() == Fault::NoSpace || GetParam() == Fault::InputOutput) {
      EXPECT_EQ(outcome.faults + outcome.warnings, 1) << "call " << at;
    }
    if (crashes && at % 2 == 0) files->lose_power();
    expect_whole(place, outcome, whole.weights);
    fs::remove_all(place);
    if (HasFailure()) FAIL() << "call " << at;
  }
  if (GetParam() == Fault::ShortWrite || crashes)
    EXPECT_EQ(told, 0);
  else
    EXPECT_EQ(told, count->calls() - 2);
}

INSTANTIATE_TEST_SUITE_P(OfTheDisk,
                         EveryCall,
                         testing::Values(Fault::Crash,
                                         Fault::CrashAfter,
                                         Fault::NoSpace,
                                         Fault::InputOutput,
                                         Fault::ReadOnly,
                                         Fault::ShortWrite));

TEST(Save, ToAFolderThatCannotBeMadeIsRefusedBeforeTheFirstStep) {
  const Folder folder("faults_no_folder");
  const std::string file = folder.write("file", "");
  Trainer trainer(parse_model(kSmall), small_options(file, nullptr));
  int steps = 0;
  trainer.on_step = [&](const StepReport&) { ++steps; };
  EXPECT_THROW(trainer.fit(first_digits(20)), StorageError);
  EXPECT_EQ(steps, 0);
}

TEST(Save, OnARealDiskIsDurableAndWhole) {
  const Folder folder("faults_real_disk");
  Trainer trainer(parse_model(kSmall), small_options(folder.path(), nullptr));
  fit_steps(trainer, first_digits(20), 2);
  const SaveReport again = trainer.save();  // the same state: it stands already
  EXPECT_THAT(again.fault, IsEmpty());
  EXPECT_EQ(again.step, 2);
  EXPECT_EQ(Checkpoint(again.folder).manifest().counters, trainer.state().counters());
  EXPECT_THAT(names_in(folder.path()), testing::SizeIs(2));
}

/// A stage that fails in its third step.
TEST(Save, FollowsAStepThatFailedWhileTheStateIsWhole) {
  const Dataset data = first_digits(20);
  const Folder folder("faults_failed_step");
  TrainerOptions options = small_options(folder.path(), std::make_shared<Hasty>());
  options.save.every_steps = 0;
  Trainer whole(parse_model(kSmall), small_options(folder.path() + "/whole", nullptr));
  whole.fit(data);
  Trainer trainer(parse_model(kSmall), options);
  int steps = 0;
  trainer.before_update = [&](std::span<Parameter* const>) {
    if (++steps == 3) throw Error("this step fails");
  };
  EXPECT_THROW(trainer.fit(data), Error);
  ASSERT_EQ(find_checkpoints(folder.path()).size(), 1U);
  EXPECT_EQ(find_checkpoints(folder.path()).front().step, 2);
  Trainer next(parse_model(kSmall), options);
  next.resume(folder.path());
  next.fit(data);
  EXPECT_EQ(next.weights_hash(), whole.weights_hash());
}

}  // namespace
}  // namespace millrace
