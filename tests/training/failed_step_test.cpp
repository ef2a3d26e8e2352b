// A step that fails in one of several processes: all that live save the state before it, without a
// word between them, and nobody saves anything where they do not stand behind the same step.
#include <chrono>
#include <filesystem>
#include <functional>
#include <latch>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/training/checkpoint.hpp"
#include "millrace/transport/failure.hpp"
#include "millrace/transport/in_process.hpp"
#include "tests/training/faulty_files.hpp"
#include "tests/training/sample_files.hpp"
#include "tests/training/saved_runs.hpp"

namespace millrace {
namespace {

using testing::AnyOf;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;
using testing_files::Folder;
using testing_training::Crashed;
using testing_training::Fault;
using testing_training::FaultyFiles;
using testing_training::files_in;
using testing_training::first_digits;
using testing_training::fit_steps;
using testing_training::Hasty;
using testing_training::kSavedModel;
using testing_training::names_in;
using testing_training::parts_on;
using testing_training::saved_options;

constexpr int kRanks = 3;
constexpr int kStep = 4;  // fails: so many ran before it
const char* const kPlace = "/step-0000000004";

/// A message that a rank sends or takes.
struct Message {
  bool is_sent = false;
  MessageTag tag;
};
using Spoil = std::function<void(const Message&)>;

/// An endpoint that throws, or whatever `spoil` does, before a message.
class Spoiled final : public Endpoint {
 public:
  Spoiled(Endpoint& endpoint, Spoil spoil) : endpoint_(endpoint), spoil_(std::move(spoil)) {}

  [[nodiscard]] Rank rank() const override { return endpoint_.rank(); }
  [[nodiscard]] int world() const override { return endpoint_.world(); }
  void send(Rank to, const MessageTag& tag, TensorList payload) override {
    if (spoil_) spoil_({true, tag});
    endpoint_.send(to, tag, std::move(payload));
  }
  [[nodiscard]] TensorList receive(Rank from, const MessageTag& tag, Deadline deadline) override {
    if (spoil_) spoil_({false, tag});
    return endpoint_.receive(from, tag, deadline);
  }
  void cancel(const std::string& reason) noexcept override { endpoint_.cancel(reason); }
  void goodbye(Deadline deadline) override { endpoint_.goodbye(deadline); }

 private:
  Endpoint& endpoint_;
  Spoil spoil_;
};

/// How a rank takes part.
struct Part {
  TrainerOptions options;
  Spoil spoil = {};
  std::function<void(Trainer&)> prepare = {};  // hooks of its trainer
  const char* model = kSavedModel;
  std::function<void(Trainer&, const Dataset&)> fit = [](Trainer& trainer, const Dataset& data) {
    trainer.fit(data);
  };
};

/// What became of a rank.
struct End {
  std::string failure;
  std::vector<SaveReport> saves;

  [[nodiscard]] const SaveReport& last() const { return saves.back(); }
};

End end_of(Trainer& trainer, const Part& part, const Dataset& data) {
  End end;
  trainer.on_save = [&](const SaveReport& report) { end.saves.push_back(report); };
  try {
    part.fit(trainer, data);
  } catch (const std::exception& error) {
    end.failure = error.what();
  }
  return end;
}

/// Trains on so many ranks, each a thread with a process' means, until all have failed.
std::vector<End> fail_on_ranks(int count, const std::function<Part(int)>& part_of) {
  const Dataset data = first_digits(60);
  InProcessHub hub(count);
  std::vector<End> ends(static_cast<std::size_t>(count));
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < count; ++rank)
    ranks.emplace_back([&, rank, raw = hub.endpoint(Rank{rank})] {
      const Part part = part_of(rank);
      Spoiled endpoint(*raw, part.spoil);
      ProcessGroup group(endpoint, std::chrono::seconds(30));
      try {
        Trainer trainer(parts_on(part.options, endpoint, group, part.model), part.options);
        if (part.prepare) part.prepare(trainer);
        ends[static_cast<std::size_t>(rank)] = end_of(trainer, part, data);
      } catch (const Crashed&) {
        return;
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
        endpoint.cancel(error.what());
      }
    });
  ranks.clear();
  return ends;
}

/// The files that one process saves behind so many steps, and the weights at the end of the run.
struct Reference {
  std::map<std::string, std::string> files;
  std::string weights;

  explicit Reference(const std::string& folder) {
    const Dataset data = first_digits(60);
    Trainer trainer(parse_model(kSavedModel), saved_options(folder, 1));
    fit_steps(trainer, data, kStep);
    files = files_in(folder + kPlace);
    Trainer whole(parse_model(kSavedModel), saved_options(folder + "/whole", 1));
    whole.fit(data);
    weights = whole.weights_hash();
  }
};

std::string weights_resumed(const TrainerOptions& options, const char* model = kSavedModel) {
  Trainer trainer(parse_model(model), options);
  trainer.resume(options.save.folder);
  trainer.fit(first_digits(60));
  return trainer.weights_hash();
}

bool is_pass(const Message& message, Direction direction) {
  return message.tag.direction == direction && message.tag.step == kStep;
}

bool is_collective(const Message& message, Label label) {
  return is_pass(message, Direction::Collective) &&
         message.tag.slice.value == static_cast<std::int32_t>(label);
}

void fail() {
  throw Error("the floor gave way");
}

/// Where the step fails in one rank, before anybody's update.
struct Failure {
  std::string name;
  int rank = 0;
  std::function<void(Part&)> plant;
};

Spoil spoil_where(const std::function<bool(const Message&)>& where) {
  return [where](const Message& message) {
    if (where(message)) fail();
  };
}

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
  const std::vector<End> ends = fail_on_ranks(kRanks, [&](int rank) {
    Part part{saved_options(place, kRanks)};
    if (rank == GetParam().rank) GetParam().plant(part);
    return part;
  });
  for (const End& end : ends) {
    EXPECT_THAT(end.failure, AnyOf(HasSubstr("gave way"), HasSubstr("deadline")));
    ASSERT_EQ(end.saves.size(), 1U);
    EXPECT_EQ(end.last().fault, "");
    EXPECT_EQ(end.last().folder, place + kPlace);
    EXPECT_EQ(end.last().step, kStep);
    EXPECT_TRUE(end.last().after_failure);
  }
  EXPECT_THAT(names_in(place), ElementsAre(kPlace + 1));
  EXPECT_EQ(files_in(place + kPlace), reference.files);
  std::filesystem::copy(place, place + "-2", std::filesystem::copy_options::recursive);
  EXPECT_EQ(weights_resumed(saved_options(place, 1)), reference.weights);
  EXPECT_EQ(weights_resumed(saved_options(place + "-2", 2)), reference.weights);
}

INSTANTIATE_TEST_SUITE_P(Anywhere, FailedStep, testing::ValuesIn(failures()), [](const auto& test) {
  return test.param.name;
});

/// The parts of ranks of which one fails in its pass.
Part failing_part(const std::string& place, int rank, int failing = 1) {
  Part part{saved_options(place, kRanks)};
  if (rank == failing)
    part.spoil =
        spoil_where([](const Message& m) { return m.is_sent && is_pass(m, Direction::Backward); });
  return part;
}

TEST(FailedStepOfMany, LeavesACheckpointThatStandsAsItIs) {
  for (const bool background : {false, true}) {
    const Folder folder("failed_step_stands");
    const std::string place = folder.path();
    const auto ends = fail_on_ranks(kRanks, [&](int rank) {
      Part part = failing_part(place, rank);
      part.options.save.every_steps = 2;
      part.options.save.background = background;
      return part;
    });
    for (const End& end : ends) {
      EXPECT_EQ(end.last().fault, "");
      EXPECT_EQ(end.last().folder, place + kPlace);
      EXPECT_TRUE(end.last().after_failure);
    }
    EXPECT_THAT(names_in(place), ElementsAre("step-0000000002", "step-0000000004"));
    EXPECT_NO_THROW(Checkpoint(place + kPlace));
  }
}

/// Rank 2 hears the norm too late: the others have updated with it.
TEST(FailedStepOfMany, IsNotSavedWhereItWasDoneInSomeProcessesOnly) {
  const Folder folder("failed_step_votes");
  std::latch updated(2);
  const auto ends = fail_on_ranks(kRanks, [&](int rank) {
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

TEST(FailedStepOfMany, IsPrecededByTheCheckpointWhenTheDataCannotBeRead) {
  const Folder folder("failed_step_data");
  const Reference reference(folder.path() + "/reference");
  const std::string place = folder.path() + "/saved";
  const auto ends = fail_on_ranks(kRanks, [&](int rank) {
    Part part{saved_options(place, kRanks)};
    part.fit = [rank](Trainer& trainer, const Dataset& data) {
      Unreadable source(data, trainer.loader_options(), rank == 0);
      trainer.fit(source);
    };
    return part;
  });
  for (const End& end : ends) {
    EXPECT_EQ(end.failure, "the page is torn");
    EXPECT_EQ(end.last().folder, place + kPlace);
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
TEST(FailedStepOfMany, OfATrainingThatDivergesTheLastStateIsSaved) {
  const Folder folder("failed_step_diverged");
  const auto options = [&](const std::string& name, int ranks) {
    TrainerOptions made = saved_options(folder.path() + name, ranks);
    made.max_skipped = kStep;
    return made;
  };
  Trainer one(parse_model(kSavedModel), options("/1", 1));
  spoil_gradients(one);
  EXPECT_THROW(one.fit(first_digits(60)), Diverged);
  const auto ends = fail_on_ranks(kRanks, [&](int) {
    return Part{options("/3", kRanks), {}, spoil_gradients};
  });
  for (const End& end : ends) {
    EXPECT_THAT(end.failure, HasSubstr("diverged"));
    EXPECT_TRUE(end.last().after_failure);
  }
  EXPECT_EQ(files_in(folder.path() + "/3" + kPlace), files_in(folder.path() + "/1" + kPlace));
}

/// A learning rule that fails behind its first parameter.
class Failing final : public Optimizer {
 public:
  explicit Failing(bool fails) : fails_(fails) {}
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

TEST(FailedStepOfMany, IsNotSavedWhereAnUpdateHadBegun) {
  const Folder folder("failed_step_torn");
  const auto ends = fail_on_ranks(kRanks, [&](int rank) {
    Part part = failing_part(folder.path(), rank, -1);
    part.options.custom_optimizer = std::make_shared<Failing>(rank == 1);
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

class FailedStepAndStorage : public testing::TestWithParam<StorageFault> {};

/// Two ranks, a file each: every call of the last save is one of few.
struct SmallRun {
  static constexpr const char* kModel = "mlp:64-12-10";

  explicit SmallRun(const std::string& folder) : before(folder + "/before") {
    const Dataset data = first_digits(60);
    Trainer first(parse_model(kModel), options(before));
    fit_steps(first, data, kStep - 2);
    Trainer whole(parse_model(kModel), options(folder + "/whole"));
    whole.fit(data);
    weights = whole.weights_hash();
  }

  static TrainerOptions options(const std::string& place) {
    TrainerOptions options = saved_options(place, 2);
    options.optimizer.kind = OptimizerKind::Sgd;
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
      part.model = kModel;
      part.prepare = [place](Trainer& trainer) { trainer.resume(place); };
      if (rank == faulty) part.options.save.files = files;
      return part;
    });
  }

  std::string before, weights;
};

/// At every call of the last save, behind a checkpoint that is whole.
TEST_P(FailedStepAndStorage, LeavesWhatIsOlderWholeAndNothingUnfinishedBehindTheNextStart) {
  const auto& [name, faulty, fault] = GetParam();
  const Folder folder("failed_step_storage_" + name);
  const SmallRun run(folder.path());
  const auto count = std::make_shared<FaultyFiles>(fault, -1);
  const std::string counted = folder.path() + "/count";
  EXPECT_EQ(run.go_on(counted, faulty, count, std::chrono::minutes(1))[0].last().fault, "");
  int saved = 0;
  for (int at = faulty == 0 ? 1 : 0; at < count->calls(); ++at) {  // the first makes the folder
    SCOPED_TRACE("call " + std::to_string(at));
    const std::string place = folder.path() + "/" + std::to_string(at);
    const auto files = std::make_shared<FaultyFiles>(fault, at);
    // Too short for a slow machine, which then saves nothing and says so.
    const auto ends = run.go_on(place, faulty, files, std::chrono::milliseconds(20));
    const std::vector<std::string> left = names_in(place);
    const bool is_saved = std::ranges::find(left, kPlace + 1) != left.end();
    EXPECT_THAT(left, Contains("step-0000000002"));
    saved += is_saved ? 1 : 0;
    if (fault != Fault::Crash || faulty != 0) {
      EXPECT_TRUE(is_saved || !ends[0].last().fault.empty());
    }
    EXPECT_EQ(weights_resumed(SmallRun::options(place), SmallRun::kModel), run.weights);
    EXPECT_THAT(names_in(place), Each(StartsWith("step-")));
    std::filesystem::remove_all(place);
    if (HasFailure()) return;
  }
  EXPECT_LT(saved, count->calls() / 2);  // most calls come before the checkpoint has its name
}

INSTANTIATE_TEST_SUITE_P(OfOneRank,
                         FailedStepAndStorage,
                         testing::Values(StorageFault{"FullOfTheFirst", 0, Fault::NoSpace},
                                         StorageFault{"FullOfAnother", 1, Fault::NoSpace},
                                         StorageFault{"FirstIsKilled", 0, Fault::Crash},
                                         StorageFault{"AnotherIsKilled", 1, Fault::Crash}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace millrace
