// A step that fails in one of several processes: all that live save the state before it, without a
// word between them.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/training/checkpoint.hpp"
#include "support/test_options.hpp"
#include "tests/training/failing_ranks.hpp"
#include "tests/training/sample_files.hpp"

namespace millrace {
namespace {

using testing::AnyOf;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using testing_files::Folder;
using testing_training::End;
using testing_training::fail;
using testing_training::fail_on_ranks;
using testing_training::failing_part;
using testing_training::files_in;
using testing_training::first_digits;
using testing_training::Hasty;
using testing_training::is_collective;
using testing_training::is_pass;
using testing_training::kSavedModel;
using testing_training::kSavedPlace;
using testing_training::kSavedRanks;
using testing_training::kStep;
using testing_training::Message;
using testing_training::names_in;
using testing_training::on_ranks;
using testing_training::Part;
using testing_training::parts_on;
using testing_training::Reference;
using testing_training::saved_options;
using testing_training::spoil_where;
using testing_training::weights_resumed;

/// Where the step fails in one rank, before anybody's update.
struct Failure {
  std::string name;
  int rank = 0;
  std::function<void(Part&)> plant;
};

std::vector<Failure> failures() {
  return {{"Activation",
           1,
           [](Part& part) {
             part.spoil = spoil_where(
                 [](const Message& m) { return m.is_sent && is_pass(m, Direction::Forward); });
           }},
          {"Gradient",
           2,
           [](Part& part) {
             part.spoil = spoil_where(
                 [](const Message& m) { return m.is_sent && is_pass(m, Direction::Backward); });
           }},
          {"Loss",
           2,
           [](Part& part) {
             part.spoil = spoil_where(
                 [](const Message& m) { return m.is_sent && is_collective(m, Label::Loss); });
           }},
          {"Norm",
           0,
           [](Part& part) {
             part.spoil = spoil_where([](const Message& m) {
               return !m.is_sent && is_collective(m, Label::GradientNorm);
             });
           }},
          {"Hook",
           1,
           [](Part& part) {
             part.prepare = [](Trainer& trainer) {
               trainer.before_update = [&trainer](std::span<Parameter* const>) {
                 if (trainer.state().counters().mini_batches == kStep + 1) fail();
               };
             };
           }},
          {"Deadline", 1, [](Part& part) {
             part.spoil = [](const Message& message) {
               if (!message.is_sent && is_pass(message, Direction::Backward))
                 throw TransportError("it did not arrive before the deadline");
             };
           }}};
}

class FailedStep : public testing::TestWithParam<Failure> {};

TEST_P(FailedStep, IsPrecededByTheCheckpointOfAllProcesses) {
  const Folder folder("failed_step_" + GetParam().name);
  const Reference reference(folder.path() + "/reference");
  const std::string place = folder.path() + "/saved";
  const std::vector<End> ends = fail_on_ranks(kSavedRanks, [&](int rank) {
    Part part{saved_options(place, kSavedRanks)};
    if (rank == GetParam().rank) GetParam().plant(part);
    return part;
  });
  for (const End& end : ends) {
    EXPECT_THAT(end.failure, AnyOf(HasSubstr("gave way"), HasSubstr("deadline")));
    ASSERT_EQ(end.saves.size(), 1U);
    EXPECT_EQ(end.last().fault, "");
    EXPECT_EQ(end.last().folder, place + kSavedPlace);
    EXPECT_EQ(end.last().step, kStep);
    EXPECT_TRUE(end.last().after_failure);
  }
  EXPECT_THAT(names_in(place), ElementsAre(kSavedPlace + 1));
  EXPECT_EQ(files_in(place + kSavedPlace), reference.files);
  std::filesystem::copy(place, place + "-2", std::filesystem::copy_options::recursive);
  EXPECT_EQ(weights_resumed(saved_options(place, 1)), reference.weights);
  EXPECT_EQ(weights_resumed(saved_options(place + "-2", 2)), reference.weights);
}

INSTANTIATE_TEST_SUITE_P(Anywhere, FailedStep, testing::ValuesIn(failures()), [](const auto& test) {
  return test.param.name;
});

TEST(FailedStepOfMany, LeavesAWholeCheckpoint) {
  for (const bool background : {false, true}) {
    const Folder folder("failed_step_stands");
    const std::string place = folder.path();
    const auto ends = fail_on_ranks(kSavedRanks, [&](int rank) {
      Part part = failing_part(place, rank);
      part.options.save.every_steps = 2;
      part.options.save.background = background;
      return part;
    });
    for (const End& end : ends) {
      EXPECT_EQ(end.last().fault, "");
      EXPECT_EQ(end.last().folder, place + kSavedPlace);
      EXPECT_TRUE(end.last().after_failure);
    }
    EXPECT_THAT(names_in(place), ElementsAre("step-0000000002", "step-0000000004"));
    EXPECT_NO_THROW(Checkpoint(place + kSavedPlace));
  }
}

/// Mini-batches of a loader, one of which cannot be read.
class Unreadable final : public BatchSource {
 public:
  Unreadable(const Dataset& data, const LoaderOptions& options, bool is_torn)
      : loader_(data, options), is_torn_(is_torn) {}
  Batch& next() override {
    if (is_torn_ && position() == DataPosition{1, 1}) throw DataError("the page is torn");
    return loader_.next();
  }
  [[nodiscard]] DataPosition position() const override { return loader_.position(); }
  void seek(const DataPosition& position) override { loader_.seek(position); }
  [[nodiscard]] std::int64_t batches_per_epoch() const override {
    return loader_.batches_per_epoch();
  }

 private:
  Loader loader_;
  bool is_torn_;
};

TEST(FailedStepOfMany, UnreadableData_SavesFirst) {
  const Folder folder("failed_step_data");
  const Reference reference(folder.path() + "/reference");
  const std::string place = folder.path() + "/saved";
  const auto ends = fail_on_ranks(kSavedRanks, [&](int rank) {
    Part part{saved_options(place, kSavedRanks)};
    part.fit = [rank](Trainer& trainer, const Dataset& data) {
      Unreadable source(data, trainer.loader_options(), rank == 0);
      trainer.fit(source);
    };
    return part;
  });
  for (const End& end : ends) {
    EXPECT_EQ(end.failure, "the page is torn");
    EXPECT_EQ(end.last().folder, place + kSavedPlace);
  }
  EXPECT_EQ(weights_resumed(saved_options(place, 2)), reference.weights);
}

void spoil_gradients(Trainer& trainer) {
  trainer.before_update = [](std::span<Parameter* const> parameters) {
    for (Parameter* parameter : parameters)
      parameter->gradient.as<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  };
}

/// All processes throw it behind the same step, and can talk.
TEST(FailedStepOfMany, Divergence_SavesTheLastState) {
  const Folder folder("failed_step_diverged");
  const auto options = [&](const std::string& name, int ranks) {
    TestOptions made = saved_options(folder.path() + name, ranks);
    made.step.max_skipped = kStep;
    return made;
  };
  Trainer one = trainer_of(parse_model(kSavedModel), options("/1", 1));
  spoil_gradients(one);
  EXPECT_THROW(one.fit(first_digits(60)), Diverged);
  const auto ends = fail_on_ranks(kSavedRanks, [&](int) {
    return Part{options("/3", kSavedRanks), {}, spoil_gradients};
  });
  for (const End& end : ends) {
    EXPECT_THAT(end.failure, HasSubstr("diverged"));
    EXPECT_TRUE(end.last().after_failure);
  }
  EXPECT_EQ(files_in(folder.path() + "/3" + kSavedPlace),
            files_in(folder.path() + "/1" + kSavedPlace));
}

/// Both hold all of the model, and the first one writes it.
TEST(FailedStepOfMany, BidirectionalSchedule_SavesFirst) {
  const Folder folder("failed_step_copies");
  const auto options = [&](const std::string& name) {
    TestOptions made = saved_options(folder.path() + name, 2);
    made.pipeline.schedule = "chimera";
    return made;
  };
  const auto ends = fail_on_ranks(2, [&](int rank) {
    Part part = failing_part(folder.path(), rank);
    part.options = options("/saved");
    return part;
  });
  for (const End& end : ends) EXPECT_EQ(end.last().folder, folder.path() + "/saved" + kSavedPlace);
  Trainer whole = trainer_of(parse_model(kSavedModel), options("/whole"));
  whole.fit(first_digits(60));
  EXPECT_EQ(weights_resumed(options("/saved")), whole.weights_hash());
}

/// Mini-batches of four micro-batches in two passes; the update behind step 4 fails in its second.
struct Passes {
  explicit Passes(std::string place) : folder(std::move(place)) {}

  [[nodiscard]] Part part(const std::string& name, int rank) const {
    Part part = failing_part(folder + name, rank, -1);
    part.options.step.accumulate = 2;
    part.options.pipeline.shape.micro_batches = 2;
    if (rank == 1)
      part.spoil = spoil_where([](const Message& m) {
        return m.is_sent && is_pass(m, Direction::Backward) && m.tag.micro_batch.value >= 2;
      });
    return part;
  }

  std::string folder;
};

TEST(FailedStepOfMany, SeveralPasses_SaveTheirStart) {
  const Folder folder("failed_step_passes");
  const Passes passes(folder.path());
  const auto ends =
      fail_on_ranks(kSavedRanks, [&](int rank) { return passes.part("/saved", rank); });
  for (const End& end : ends) EXPECT_EQ(end.last().folder, folder.path() + "/saved" + kSavedPlace);
  const Reference reference(folder.path() + "/reference");
  EXPECT_EQ(weights_resumed(saved_options(folder.path() + "/saved", 1)), reference.weights);
}

/// What was resumed in mid-update has its sums in the checkpoint that it was resumed from alone.
TEST(FailedStepOfMany, ResumedUpdate_IsNotSavedAgain) {
  const Folder folder("failed_step_resumed_update");
  const Passes passes(folder.path());
  const std::string first = folder.path() + "/first", place = "/step-0000000004-plus-0000000002";
  on_ranks(kSavedRanks, [&](Endpoint& endpoint, ProcessGroup& group) {
    const TestOptions options = passes.part("/first", 0).options;
    Trainer trainer(parts_on(options, endpoint, group));
    std::stop_source stop;
    trainer.on_pass = [&] {
      if (trainer.state().counters().mini_batches == kStep + 1) stop.request_stop();
    };
    EXPECT_TRUE(trainer.fit(first_digits(60), stop.get_token()).stopped);
  });
  for (const std::string name : {"/first", "/second"}) {
    const auto ends = fail_on_ranks(kSavedRanks, [&](int rank) {
      Part part = passes.part(name, rank);
      part.prepare = [&](Trainer& trainer) { trainer.resume(first); };
      return part;
    });
    EXPECT_EQ(ends[0].last().folder, name == "/first" ? first + place : "");
    EXPECT_EQ(
        ends[0].last().fault,
        name == "/first"
            ? ""
            : "rank 0: it is in the middle of an update, whose first sums are in the checkpoint "
              "that it goes on from");
    EXPECT_THAT(names_in(first), ElementsAre(place.substr(1)));
  }
}

/// The background save before may end while the others vote: what it clears away is not theirs.
class SlowCommit final : public Hasty {
 public:
  explicit SlowCommit(std::string root) : root_(std::move(root)) {}
  void rename(const std::string& from, const std::string& to) override {
    if (to.ends_with("step-0000000003")) await_votes();
    Hasty::rename(from, to);
  }

 private:
  [[nodiscard]] bool has_votes() {
    return std::ranges::any_of(list(root_), [&](const std::string& name) {
      const std::string votes = root_ + "/" + name;
      return name.ends_with("-votes") && exists(votes + "/rank-1") && exists(votes + "/rank-2");
    });
  }
  void await_votes() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!has_votes() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  }

  std::string root_;
};

TEST(FailedStepOfMany, EarlierSave_Finishes) {
  const Folder folder("failed_step_slow");
  const std::string place = folder.path();
  const auto ends = fail_on_ranks(kSavedRanks, [&](int rank) {
    Part part = failing_part(place, rank);
    part.options.save.every_steps = 3;
    if (rank == 0) part.options.save.files = std::make_shared<SlowCommit>(place);
    return part;
  });
  for (const End& end : ends) EXPECT_EQ(end.last().folder, place + kSavedPlace);
  EXPECT_THAT(names_in(place), Contains(kSavedPlace + 1));
  EXPECT_THAT(names_in(place), Each(StartsWith("step-")));
}

/// Else some would stand before an update that others have made when the next step fails.
TEST(FailedStepOfMany, NoRankStarts_BeforeAllFinished) {
  const Folder folder("failed_step_in_order");
  std::array<std::atomic<std::int64_t>, kSavedRanks> behind{};
  const auto ends = fail_on_ranks(kSavedRanks, [&](int rank) {
    Part part = failing_part(folder.path(), rank, -1);
    part.spoil = [&, rank](const Message& message) {
      if (rank == 2 && is_collective(message, Label::GradientNorm))
        for (int i = 0; i < 1000; ++i) std::this_thread::yield();  // it is the last one
      if (message.tag.direction != Direction::Forward) return;
      for (const auto& step : behind) EXPECT_GE(step, static_cast<std::int64_t>(message.tag.step));
    };
    part.prepare = [&, rank](Trainer& trainer) {
      trainer.on_step = [&, rank](const StepReport&) {
        behind.at(static_cast<std::size_t>(rank)) = trainer.state().counters().mini_batches;
      };
    };
    return part;
  });
  for (const End& end : ends) EXPECT_EQ(end.failure, "");
}

}  // namespace
}  // namespace millrace
