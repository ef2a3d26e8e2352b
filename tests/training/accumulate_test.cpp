// Accumulation over several passes: K passes of m micro-batches are one pass of K m, bit for bit,
// in the memory of m. The other side of every comparison is the single pass, which has tests of its
// own against a plain loop.
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/training/ranks.hpp"
#include "millrace/training/records.hpp"
#include "millrace/training/trainer.hpp"
#include "tests/training/first_digits.hpp"
#include "tests/training/on_ranks.hpp"

namespace millrace {
namespace {

using testing::HasSubstr;
using testing_training::first_digits;
using testing_training::on_ranks;
using testing_training::plain_options;

constexpr int kMicroBatches = 8;  // of a mini-batch
const char* const kModel = "mlp:64-16-16-16-16-10,dropout=0.2";

/// 60 samples in mini-batches of 25, 25 and 10; the last has 8 micro-batches of 2 and 1 samples.
TestOptions options_of(const std::string& schedule, int ranks, int passes) {
  TestOptions options = plain_options(ranks, kMicroBatches / passes);
  options.pipeline.schedule = schedule;
  options.step.accumulate = passes;
  options.step.optimizer.kind = OptimizerKind::AdamW;
  options.step.clip_norm = 0.5;
  options.step.learning_rate.base = 0.01;
  options.fit.batch_size = 25;
  options.fit.epochs = 2;
  return options;
}

/// What must not depend on the passes.
struct Course {
  std::vector<double> losses;
  std::vector<std::int64_t> samples;
  std::string weights;

  friend bool operator==(const Course&, const Course&) = default;
};

Course course_of(Trainer& trainer) {
  Course course;
  trainer.on_step = [&](const StepReport& report) {
    course.losses.push_back(report.mean_loss());
    course.samples.push_back(report.samples);
  };
  trainer.fit(first_digits(60));
  EXPECT_EQ(trainer.global_step(), 6);
  course.weights = trainer.weights_hash();
  return course;
}

Course course_of(const TestOptions& options, const std::string& model = kModel) {
  Trainer trainer(parse_model(model), options.pipeline, options);
  return course_of(trainer);
}

/// The same with a process' means for every rank.
Course course_on_ranks(const TestOptions& options) {
  std::mutex mutex;
  std::vector<Course> courses;
  on_ranks(options.pipeline.shape.ranks, [&](Endpoint& endpoint, ProcessGroup& group) {
    const Program program = generate(options.pipeline.schedule,
                                     {.ranks = options.pipeline.shape.ranks,
                                      .micro_batches = options.pipeline.shape.micro_batches});
    Trainer trainer(rank_parts(parse_model(kModel), {program}, options, endpoint, group));
    Course course = course_of(trainer);
    const std::lock_guard lock(mutex);
    courses.push_back(std::move(course));
  });
  for (const Course& course : courses) EXPECT_EQ(course, courses.front());
  return courses.empty() ? Course() : courses.front();
}

class Accumulate : public testing::TestWithParam<std::string> {};

TEST_P(Accumulate, GivesTheBitsOfOnePassForEverySchedule) {
  const Course expected = course_of(options_of("1f1b", 1, 1));
  const std::vector<std::pair<std::string, int>> variants = {
      {"gpipe", 1}, {"gpipe", 3}, {"1f1b", 3}, {"1f1b", 4}, {"zb-h1", 2}, {"interleaved", 2}};
  for (const auto& [schedule, ranks] : variants)
    for (const int passes : {2, 4, 8}) {
      if (schedule == "interleaved" && passes == 8) continue;  // needs 2 micro-batches
      TestOptions options = options_of(schedule, ranks, passes);
      options.run.executor = GetParam();
      if (schedule == "interleaved") options.pipeline.shape.chunks = 2;
      EXPECT_EQ(course_of(options), expected) << schedule << " on " << ranks << ", " << passes;
    }
}

/// The copies of a stage add up apart, each over all passes, and are added to one another once.
TEST_P(Accumulate, GivesTheBitsOfOnePassOfABidirectionalPipeline) {
  TestOptions whole = options_of("chimera", 2, 1);
  whole.run.executor = GetParam();
  const Course expected = course_of(whole);
  for (const int passes : {2, 4}) {
    TestOptions options = options_of("chimera", 2, passes);
    options.run.executor = GetParam();
    EXPECT_EQ(course_of(options), expected) << passes;
  }
}

TEST_P(Accumulate, GivesTheBitsOfOnePassOfTiedWeights) {
  const auto tied = [&](int ranks, int passes) {
    TestOptions options = options_of("1f1b", ranks, passes);
    options.run.executor = GetParam();
    options.step.tied = {{"layers.2.weight", "layers.4.weight", "layers.6.weight"}};
    return options;
  };
  const Course expected = course_of(tied(1, 1));
  for (const int passes : {2, 4}) EXPECT_EQ(course_of(tied(3, passes)), expected) << passes;
}

INSTANTIATE_TEST_SUITE_P(Executors,
                         Accumulate,
                         testing::Values("sequential", "flow-graph", "ranks"),
                         [](const auto& tested) {
                           return tested.param == "flow-graph" ? std::string("FlowGraph")
                                                               : tested.param;
                         });

TEST(AccumulateOnProcesses, GivesTheBitsOfOnePass) {
  for (const auto& [schedule, ranks] :
       {std::pair<std::string, int>{"1f1b", 3}, {"zb-h1", 2}, {"chimera", 2}, {"chimera", 4}})
    for (const int passes : {1, 2}) {
      const Course expected = course_of(options_of(schedule, ranks, 1));
      EXPECT_EQ(course_on_ranks(options_of(schedule, ranks, passes)), expected)
          << schedule << " on " << ranks << ", " << passes;
    }
}

TEST(AccumulateInHalfPrecision, Overflow_HasBitsOfOnePass) {
  const auto run = [](int passes) {
    ModelSpec model = parse_model(kModel);
    model.precision = DType::F16;
    TestOptions options = options_of("1f1b", 2, passes);
    options.step.loss_scale = parse_loss_scale("dynamic:initial=16777216,interval=2");
    Trainer trainer(model, options.pipeline, options);
    const FitReport report = trainer.fit(first_digits(60));
    EXPECT_GT(report.skipped(), 0);
    return std::pair(trainer.weights_hash(), trainer.state().counters());
  };
  EXPECT_EQ(run(4), run(1));
}

TEST(AccumulateStep, KeepsNoMoreThanItsLargestPass) {
  const auto peaks = [](const std::string& schedule, int micro_batches, int passes) {
    TestOptions options = plain_options(2, micro_batches);
    options.pipeline.schedule = schedule;
    options.step.accumulate = passes;
    Trainer trainer(parse_model("mlp:64-16-16-10"), options.pipeline, options);
    Batch batch(first_digits(30), micro_batches * passes);
    const StepReport report = trainer.step(batch);
    std::vector<UnitSize> sizes = unit_sizes(30, 1, micro_batches * passes, 1);
    sizes.resize(static_cast<std::size_t>(micro_batches));
    EXPECT_EQ(report.peak_stash_bytes,
              predict_stash_peaks(trainer.executor().program(), trainer.stages(), sizes));
    return report.peak_stash_bytes;
  };
  EXPECT_LT(peaks("gpipe", 2, 4)[0], peaks("gpipe", 8, 1)[0] / 3);
  EXPECT_EQ(peaks("1f1b", 4, 2), peaks("1f1b", 8, 1));
}

/// Data of which one micro-batch cannot be read, once.
class Missing final : public StepData {
 public:
  Missing(Batch& batch, int missing) : batch_(batch), missing_(missing) {}

  TensorList inputs(const Unit& unit) override {
    if (unit.micro_batch.value == missing_) {
      missing_ = -1;
      throw InvalidArgument("nothing to read");
    }
    return batch_.inputs(unit);
  }
  TensorList targets(const Unit& unit) override { return batch_.targets(unit); }
  [[nodiscard]] std::int64_t first_sample(const Unit& unit) const override {
    return batch_.first_sample(unit);
  }

 private:
  Batch& batch_;
  int missing_;
};

TEST(AccumulateStep, ThatFailsInALaterPassLeavesNothingBehind) {
  TestOptions options = plain_options(2, 2);
  options.step.accumulate = 3;
  Trainer trainer(parse_model("mlp:64-16-10"), options.pipeline, options);
  Trainer other(parse_model("mlp:64-16-10"), options.pipeline, options);
  Batch batch(first_digits(30), 6);
  Missing data(batch, 5);
  try {
    trainer.step(data, 30);
    ADD_FAILURE() << "the step must fail";
  } catch (const StepError& error) {
    EXPECT_THAT(error.what(), HasSubstr("in pass 3 of 3 failed on rank 0: nothing to read"));
  }
  for (const Parameter* parameter : trainer.state().parameters())
    EXPECT_THAT(parameter->gradient.as<float>(), testing::Each(0.0F)) << parameter->name;
  trainer.step(data, 30);
  other.step(batch);
  EXPECT_EQ(trainer.weights_hash(), other.weights_hash());
}

TEST(AccumulateStep, WantsAMiniBatchWithAllItsMicroBatches) {
  TestOptions options = plain_options(2, 4);
  options.step.accumulate = 2;
  Trainer trainer(parse_model("mlp:64-16-10"), options.pipeline, options);
  Batch batch(first_digits(30), 4);
  try {
    trainer.step(batch);
    ADD_FAILURE() << "too few micro-batches";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "the program runs 2 passes of 4 micro-batches, the mini-batch has 4");
  }
}

TEST(AccumulateOptions, AreAtLeastOnePass) {
  for (const int passes : {0, -3, 2'000'000'000}) {
    TestOptions options = plain_options(2, 4);
    options.step.accumulate = passes;
    try {
      Trainer trainer(parse_model("mlp:64-16-10"), options.pipeline, options);
      ADD_FAILURE() << passes << " passes";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(std::string(error.what()),
                "accumulate must be from 1 to 250000000 passes of 4 micro-batches, got " +
                    std::to_string(passes));
    }
  }
}

TEST(AccumulateOptions, AreTheSameInAllProcesses) {
  on_ranks(2, [](Endpoint& endpoint, ProcessGroup& group) {
    TestOptions options = options_of("1f1b", 2, 2);
    options.step.accumulate = 2 + endpoint.rank().value;
    const Program program =
        generate("1f1b", {.ranks = 2, .micro_batches = options.pipeline.shape.micro_batches});
    try {
      Trainer trainer(rank_parts(parse_model(kModel), {program}, options, endpoint, group));
      ADD_FAILURE() << "the ranks differ";
    } catch (const Mismatch& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("accumulated passes differs: rank 0 has '2', rank 1 has '3'"));
    }
  });
}

}  // namespace
}  // namespace millrace
