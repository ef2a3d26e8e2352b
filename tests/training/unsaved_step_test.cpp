// A step that fails in one of several processes, and a state that is not saved: the processes stand
// behind different steps, one of them is gone, or its disk fails.
#include <chrono>
#include <filesystem>
#include <latch>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/test_options.hpp"
#include "tests/training/failing_ranks.hpp"
#include "tests/training/sample_files.hpp"

namespace millrace {
namespace {

using testing::Contains;
using testing::Each;
using testing::IsEmpty;
using testing::StartsWith;
using testing_files::Folder;
using testing_training::End;
using testing_training::fail;
using testing_training::fail_on_ranks;
using testing_training::failing_part;
using testing_training::Fault;
using testing_training::FaultyFiles;
using testing_training::first_digits;
using testing_training::fit_steps;
using testing_training::is_collective;
using testing_training::kSavedPlace;
using testing_training::kSavedRanks;
using testing_training::kStep;
using testing_training::Message;
using testing_training::names_in;
using testing_training::Part;
using testing_training::saved_options;
using testing_training::weights_resumed;

/// Rank 2 hears the norm too late: the others have updated with it.
TEST(UnsavedStep, PartlyDoneStep_IsNotSaved) {
  const Folder folder("failed_step_votes");
  std::latch updated(2);
  const auto ends = fail_on_ranks(kSavedRanks, [&](int rank) {
    Part part = failing_part(folder.path(), rank, -1);
    part.prepare = [&](Trainer& trainer) {
      trainer.on_step = [&](const StepReport&) {
        if (trainer.state().counters().mini_batches == kStep + 1) updated.count_down();
      };
    };
    if (rank == 2)
      part.spoil = [&](const Message& message) {
        if (message.is_sent || !is_collective(message, Label::GradientNorm)) return;
        updated.wait();
        fail();
      };
    return part;
  });
  EXPECT_EQ(ends[0].last().fault, "rank 2 stands behind step 4, rank 0 behind step 5");
  for (const End& end : ends) EXPECT_EQ(end.last().folder, "");
  EXPECT_THAT(names_in(folder.path()), IsEmpty());
}

TEST(UnsavedStep, IsNotSavedWhereProcessesCountDifferently) {
  const Folder folder("failed_step_counters");
  const auto ends = fail_on_ranks(kSavedRanks, [&](int rank) {
    Part part = failing_part(folder.path(), rank);
    if (rank == 2)
      part.prepare = [](Trainer& trainer) {
        trainer.on_step = [&trainer](const StepReport&) {
          TrainingCounters counters = trainer.state().counters();
          counters.skipped_in_a_row = 1;
          trainer.state().set_counters(counters);
        };
      };
    return part;
  });
  EXPECT_EQ(ends[0].last().fault, "rank 2 has other settings or counters than rank 0");
  EXPECT_THAT(names_in(folder.path()), IsEmpty());
}

/// A learning rule that fails behind its first parameter.
class FailsInUpdate final : public Optimizer {
 public:
  explicit FailsInUpdate(bool fails) : fails_(fails) {}
  [[nodiscard]] int slots() const override { return 0; }
  [[nodiscard]] std::string_view slot_name(int /*slot*/) const override { return {}; }
  void update(const UpdateSettings& settings,
              std::span<float> value,
              std::span<const float> gradient,
              std::span<const std::span<float>> /*slots*/) const override {
    if (fails_ && settings.number == kStep + 1) fail();
    for (std::size_t i = 0; i < value.size(); ++i)
      value[i] -= static_cast<float>(settings.learning_rate) * gradient[i];
  }

 private:
  bool fails_;
};

TEST(UnsavedStep, IsNotSavedWhereAnUpdateHadBegun) {
  const Folder folder("failed_step_torn");
  const auto ends = fail_on_ranks(kSavedRanks, [&](int rank) {
    Part part = failing_part(folder.path(), rank, -1);
    part.options.step.custom_optimizer = std::make_shared<FailsInUpdate>(rank == 1);
    return part;
  });
  EXPECT_EQ(ends[0].last().fault, "rank 1: its update had begun");
  EXPECT_EQ(ends[1].last().fault, "its update had begun");
  EXPECT_THAT(names_in(folder.path()), IsEmpty());
}

/// In which rank, and how its disk fails or its process ends.
struct StorageFault {
  std::string name;
  int rank = 0;
  Fault fault = Fault::NoSpace;
};

class UnsavedStepAndStorage : public testing::TestWithParam<StorageFault> {};

/// Two ranks, a file each: every call of the last save is one of few.
struct SmallRun {
  static constexpr const char* kModel = "mlp:64-12-10";

  explicit SmallRun(const std::string& folder) : before(folder + "/before") {
    const Dataset data = first_digits(60);
    Trainer first = trainer_of(parse_model(kModel), options(before));
    fit_steps(first, data, kStep - 2);
    Trainer whole = trainer_of(parse_model(kModel), options(folder + "/whole"));
    whole.fit(data);
    weights = whole.weights_hash();
  }

  static TestOptions options(const std::string& place) {
    TestOptions options = saved_options(place, 2);
    options.step.optimizer.kind = OptimizerKind::Sgd;
    return options;
  }

  /// Goes on in `place`; the backward pass of rank 1 fails.
  [[nodiscard]] std::vector<End> go_on(const std::string& place,
                                       int faulty,
                                       const std::shared_ptr<FileSystem>& files,
                                       std::chrono::milliseconds patience) const {
    std::filesystem::copy(before, place, std::filesystem::copy_options::recursive);
    return fail_on_ranks(2, [&](int rank) {
      Part part = failing_part(place, rank);
      part.options = options(place);
      part.options.save.patience = patience;
      part.model = parse_model(kModel);
      part.prepare = [place](Trainer& trainer) { trainer.resume(place); };
      if (rank == faulty) part.options.save.files = files;
      return part;
    });
  }

  std::string before, weights;
};

/// At every call of the last save, behind a checkpoint that is whole.
TEST_P(UnsavedStepAndStorage, OlderCheckpoints_StayWhole) {
  const auto& [name, faulty, fault] = GetParam();
  const Folder folder("failed_step_storage_" + name);
  const SmallRun run(folder.path());
  const auto count = std::make_shared<FaultyFiles>(fault, -1);
  const std::string counted = folder.path() + "/count";
  EXPECT_EQ(run.go_on(counted, faulty, count, std::chrono::minutes(1))[0].last().fault, "");
  int saved = 0;
  // A folder that cannot be written ends the training before its first step.
  const int first =
      testing_training::kCallsOfProbe + (faulty == 0 ? testing_training::kCallsOfFolder : 0);
  for (int at = first; at < count->calls(); ++at) {
    SCOPED_TRACE("call " + std::to_string(at));
    const std::string place = folder.path() + "/" + std::to_string(at);
    const auto files = std::make_shared<FaultyFiles>(fault, at);
    // Too short for a slow machine, which then saves nothing and says so.
    const auto ends = run.go_on(place, faulty, files, std::chrono::milliseconds(20));
    const std::vector<std::string> left = names_in(place);
    const bool is_saved = std::ranges::find(left, kSavedPlace + 1) != left.end();
    EXPECT_THAT(left, Contains("step-0000000002"));
    saved += is_saved ? 1 : 0;
    if (fault != Fault::Crash || faulty != 0) {
      EXPECT_TRUE(is_saved || !ends[0].last().fault.empty());
    }
    EXPECT_EQ(weights_resumed(SmallRun::options(place), parse_model(SmallRun::kModel)),
              run.weights);
    EXPECT_THAT(names_in(place), Each(StartsWith("step-")));
    std::filesystem::remove_all(place);
    if (HasFailure()) return;
  }
  EXPECT_LT(saved,
            (count->calls() - first) / 2);  // most calls come before the checkpoint has its name
}

INSTANTIATE_TEST_SUITE_P(OfOneRank,
                         UnsavedStepAndStorage,
                         testing::Values(StorageFault{"FullOfTheFirst", 0, Fault::NoSpace},
                                         StorageFault{"FullOfAnother", 1, Fault::NoSpace},
                                         StorageFault{"FirstIsKilled", 0, Fault::Crash},
                                         StorageFault{"AnotherIsKilled", 1, Fault::Crash}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace millrace
