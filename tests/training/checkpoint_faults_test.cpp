// Storage that fails, at every call of a save: training goes on, the newest finished checkpoint
// loads, nothing older went before something newer was durable, and the next start leaves nothing
// unfinished.
#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

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
/// Calls before the first step: the folder is made, and a checkpoint's room tried.
constexpr int kTried = testing_training::kCallsOfFolder + testing_training::kCallsOfProbe;

TestOptions small_options(const std::string& folder, std::shared_ptr<FileSystem> files) {
  TestOptions options = plain_options(1, 2);
  options.step.optimizer.kind = OptimizerKind::Momentum;
  options.fit.batch_size = 10;
  options.fit.steps = 4;
  options.save.folder = folder;
  options.save.every_steps = 1;
  options.save.keep = kKept;
  options.save.errors = SaveErrors::Continue;
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
  Trainer trainer = trainer_of(parse_model(kSmall), small_options(folder, files));
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
  Trainer next = trainer_of(parse_model(kSmall), small_options(folder, std::make_shared<Hasty>()));
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
  const int last = count->calls() - (GetParam() == Fault::CrashAfter ? 1 : 0);
  for (int at = 0; at < last; ++at) {
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
    EXPECT_EQ(told, count->calls());
}

INSTANTIATE_TEST_SUITE_P(OfTheDisk,
                         EveryCall,
                         testing::Values(Fault::Crash,
                                         Fault::CrashAfter,
                                         Fault::NoSpace,
                                         Fault::InputOutput,
                                         Fault::ReadOnly,
                                         Fault::ShortWrite));

/// A training that a checkpoint that cannot be saved ends; the steps that it ran.
int steps_until_failed(TestOptions options) {
  options.save.errors = SaveErrors::Throw;
  Trainer trainer(parse_model(kSmall), options.pipeline, options);
  int steps = 0;
  trainer.on_step = [&](const StepReport&) { ++steps; };
  EXPECT_THROW(trainer.fit(first_digits(20)), SaveFailed);
  return steps;
}

TEST(Save, ImpossibleFolder_IsRejectedFirst) {
  const Folder folder("faults_no_folder");
  EXPECT_EQ(steps_until_failed(small_options(folder.write("file", ""), nullptr)), 0);
}

TEST(Save, FullDisk_IsRejectedBeforeFirstStep) {
  const Folder folder("faults_probe");
  for (const Fault fault : {Fault::NoSpace, Fault::ReadOnly})
    for (int at = 0; at < kTried; ++at) {
      const auto files = std::make_shared<FaultyFiles>(fault, at);
      EXPECT_EQ(steps_until_failed(small_options(folder.path(), files)), 0) << "call " << at;
    }
}

TEST(Save, ThatFailsLaterEndsTheTrainingThere) {
  const Folder folder("faults_stop");
  TestOptions options =
      small_options(folder.path(), std::make_shared<FaultyFiles>(Fault::NoSpace, kTried));
  options.save.background = false;
  EXPECT_EQ(steps_until_failed(options), 1);
  EXPECT_THAT(names_in(folder.path()), IsEmpty());
}

TEST(Save, ContinuesOverAReadOnlyFolderAndReportsEverySave) {
  const Folder folder("faults_continue");
  const Outcome outcome = train(folder.path(), std::make_shared<FaultyFiles>(Fault::ReadOnly, 0));
  EXPECT_EQ(outcome.faults, 5);  // before the first step, and four saves
  EXPECT_FALSE(outcome.weights.empty());
}

std::string what_was_thrown(const auto& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no exception";
}

TEST(SaveLock, SecondTraining_IsRejectedNamingTheFirst) {
  const Folder folder("lock_second");
  Trainer first = trainer_of(parse_model(kSmall), small_options(folder.path(), nullptr));
  std::string second_told;
  first.on_step = [&](const StepReport&) {
    Trainer second = trainer_of(parse_model(kSmall), small_options(folder.path(), nullptr));
    second_told = what_was_thrown([&] { second.fit(first_digits(20)); });
  };
  first.fit(first_digits(20));
  EXPECT_THAT(second_told,
              testing::AllOf(
                  testing::HasSubstr(folder.path() + ": another job (job "),
                  testing::HasSubstr("process " + std::to_string(::getpid()) + ") saves there")));
  EXPECT_EQ(find_checkpoints(folder.path()).front().step, 4);
  EXPECT_THAT(names_in(folder.path()), Each(StartsWith("step-")));
}

/// Frees another job's lock at the third attempt to take it.
class Leaving : public Hasty {
 public:
  explicit Leaving(const std::string& path) : other_(*FileSystem::lock(path, "other")) {}

  std::optional<OpenFile> lock(const std::string& path, const std::string& text) override {
    if (++attempts_ == 3) FileSystem::unlock(other_);
    return FileSystem::lock(path, text);
  }

  int attempts_ = 0;

 private:
  OpenFile other_;
};

TEST(SaveLock, ResumedTraining_WaitsForARunThatEnds) {
  const Folder folder("lock_wait");
  trainer_of(parse_model(kSmall), small_options(folder.path(), nullptr)).fit(first_digits(20));
  const auto files = std::make_shared<Leaving>(folder.path() + "/.lock");
  Trainer next = trainer_of(parse_model(kSmall), small_options(folder.path(), files));
  next.resume(folder.path());
  EXPECT_EQ(files->attempts_, 3);
  EXPECT_TRUE(next.is_finished());

  TestOptions hasty =
      small_options(folder.path(), std::make_shared<Leaving>(folder.path() + "/.lock"));
  hasty.save.lock_wait = std::chrono::milliseconds(0);
  Trainer other(parse_model(kSmall), hasty.pipeline, hasty);
  EXPECT_THROW(other.resume(folder.path()), SaveFailed);
}

TEST(SaveLock, LeftoversOfDeadRuns_AreCleaned) {
  const Folder folder("lock_leftovers");
  const pid_t child = ::fork();
  if (child == 0) {
    FileSystem files;
    static_cast<void>(files.lock(folder.path() + "/.lock", "a longer text than the next one's"));
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(fs::exists(folder.path() + "/.lock"));
  for (const char* name : {".trash-step-0000000001", ".tmp-step-0000000002", ".tmp-probe-0"}) {
    fs::create_directory(folder.path() + "/" + name);
    std::ofstream(folder.path() + "/" + name + "/file") << "left";
  }
  trainer_of(parse_model(kSmall), small_options(folder.path(), nullptr)).fit(first_digits(20));
  EXPECT_THAT(names_in(folder.path()), Each(StartsWith("step-")));
}

TEST(SaveLock, OnlyTheFirstProcessOfAJobLocks) {
  const Folder folder("lock_processes");
  class Counting : public Hasty {
   public:
    std::optional<OpenFile> lock(const std::string& path, const std::string& text) override {
      ++locks;
      return FileSystem::lock(path, text);
    }
    std::atomic<int> locks = 0;
  };
  const auto files = std::make_shared<Counting>();
  testing_training::on_ranks(3, [&](Endpoint& endpoint, ProcessGroup& group) {
    TestOptions options = testing_training::saved_options(folder.path(), 3);
    options.save.files = files;
    Trainer rank(testing_training::parts_on(options, endpoint, group));
    fit_steps(rank, first_digits(60), 2);
  });
  EXPECT_EQ(files->locks, 1);
  EXPECT_EQ(find_checkpoints(folder.path()).front().step, 2);
}

TEST(Save, OnARealDiskIsDurableAndWhole) {
  const Folder folder("faults_real_disk");
  Trainer trainer = trainer_of(parse_model(kSmall), small_options(folder.path(), nullptr));
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
  TestOptions options = small_options(folder.path(), std::make_shared<Hasty>());
  options.save.every_steps.reset();
  Trainer whole = trainer_of(parse_model(kSmall), small_options(folder.path() + "/whole", nullptr));
  whole.fit(data);
  Trainer trainer(parse_model(kSmall), options.pipeline, options);
  int steps = 0;
  trainer.before_update = [&](std::span<Parameter* const>) {
    if (++steps == 3) throw Error("this step fails");
  };
  EXPECT_THROW(trainer.fit(data), Error);
  ASSERT_EQ(find_checkpoints(folder.path()).size(), 1U);
  EXPECT_EQ(find_checkpoints(folder.path()).front().step, 2);
  Trainer next(parse_model(kSmall), options.pipeline, options);
  next.resume(folder.path());
  next.fit(data);
  EXPECT_EQ(next.weights_hash(), whole.weights_hash());
}

}  // namespace
}  // namespace millrace
