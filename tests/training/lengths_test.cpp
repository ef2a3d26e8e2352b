// Trainings on documents of different lengths: the bits of the plain loop for every cut and
// executor, memory as the longest micro-batch says, and trainings that go on elsewhere.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/training/checks.hpp"
#include "millrace/training/dataset.hpp"
#include "millrace/training/records.hpp"
#include "millrace/training/trainer.hpp"
#include "tests/training/sample_files.hpp"
#include "tests/training/saved_runs.hpp"
#include "tests/training/uneven_lines.hpp"

namespace millrace {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using testing_files::Folder;
using testing_training::first_rows;
using testing_training::fit_steps;
using testing_training::gpt;
using testing_training::Hasty;
using testing_training::kLongest;
using testing_training::lines;
using testing_training::on_ranks;

constexpr std::int64_t kBatch = 10;
constexpr int kMicroBatches = 4;

TestOptions options_of(const std::string& schedule, const std::string& executor, int ranks) {
  TestOptions options;
  options.pipeline.schedule = schedule;
  options.run.executor = executor;
  options.pipeline.shape.ranks = ranks;
  options.pipeline.shape.micro_batches = kMicroBatches;
  options.step.optimizer = optimizer_defaults(OptimizerKind::AdamW);
  options.step.learning_rate.base = 0.01;
  options.step.clip_norm = 1;
  options.fit.batch_size = kBatch;
  options.fit.epochs = 2;
  return options;
}

/// Named after its executor, for those that leave some out.
class LengthsOn : public testing::TestWithParam<std::string> {
 protected:
  [[nodiscard]] static std::string executor() {
    std::string name = GetParam();
    std::ranges::replace(name, '_', '-');
    return name;
  }
};

INSTANTIATE_TEST_SUITE_P(Executors,
                         LengthsOn,
                         testing::Values("sequential", "flow_graph", "ranks"),
                         [](const auto& tested) { return tested.param; });

TEST_P(LengthsOn, EveryPartition_HasPlainLoopBits) {
  const TrainTest data = lines();
  for (const char* form : {",dropout=0.1", ",pos=rotary,norm=rms,mlp=swiglu,kv=2"})
    for (const DType precision : {DType::F32, DType::BF16}) {
      const ModelSpec model = gpt(data, form, precision);
      for (const auto& [schedule, ranks] : std::vector<std::pair<std::string, int>>{
               {"gpipe", 1}, {"1f1b", 2}, {"1f1b", 3}, {"zb-h1", 4}, {"zb-v", 2}}) {
        TestOptions options = options_of(schedule, executor(), ranks);
        if (ranks == 3) options.run.recompute = {.kind = RecomputeKind::All};
        const SequentialComparison found =
            verify_against_sequential(model, options.pipeline, data.train, options, 2);
        EXPECT_TRUE(found.same()) << schedule << ranks << form << name_of(precision) << ": "
                                  << to_string(found);
      }
    }
}

/// Losses of all steps, all bits of them, and what came of them.
struct Course {
  std::vector<double> losses;
  std::string weights;
  double validation = 0;

  friend bool operator==(const Course&, const Course&) = default;
};

Course course_of(Trainer& trainer, const TrainTest& data) {
  Course course;
  trainer.on_step = [&](const StepReport& report) { course.losses.push_back(report.mean_loss()); };
  trainer.fit(data.train);
  course.weights = trainer.weights_hash();
  course.validation = trainer.evaluate(data.test, kBatch).mean_loss();
  return course;
}

Course course_of(const ModelSpec& model, const TrainTest& data, const TestOptions& options) {
  Trainer trainer(model, options.pipeline, options);
  return course_of(trainer, data);
}

TEST_P(LengthsOn, TrainAlikeInStagesPassesAndWithRecompute) {
  const TrainTest data = lines();
  for (const DType precision : {DType::F32, DType::BF16}) {
    const ModelSpec model = gpt(data, ",dropout=0.1,tied=yes", precision);
    const Course alone = course_of(model, data, options_of("gpipe", "sequential", 1));
    for (const int ranks : {2, 4})
      EXPECT_EQ(course_of(model, data, options_of("1f1b", executor(), ranks)), alone) << ranks;
    TestOptions passes = options_of("zb-h1", executor(), 3);
    passes.pipeline.shape.micro_batches = kMicroBatches / 2;
    passes.step.accumulate = 2;
    passes.run.recompute = {.kind = RecomputeKind::Every, .every = 3};
    Course course = course_of(model, data, passes);
    EXPECT_EQ(course.losses, alone.losses);
    EXPECT_EQ(course.weights, alone.weights);
  }
}

TEST(Lengths, TrainAlikeInProcesses) {
  const TrainTest data = lines();
  const ModelSpec model = gpt(data, ",dropout=0.1,tied=yes");
  const Course alone = course_of(model, data, options_of("gpipe", "sequential", 1));
  on_ranks(3, [&](Endpoint& endpoint, ProcessGroup& group) {
    const TestOptions options = options_of("1f1b", "ranks", 3);
    const Program program = generate("1f1b", {.ranks = 3, .micro_batches = kMicroBatches});
    Trainer trainer(rank_parts(model, {program}, options, endpoint, group));
    EXPECT_EQ(course_of(trainer, data), alone);
  });
}

TEST(Lengths, MidEpoch_ResumesInAnotherPartition) {
  const TrainTest data = lines();
  const ModelSpec model = gpt(data, ",dropout=0.1");
  const Course whole = course_of(model, data, options_of("gpipe", "sequential", 1));
  const Folder folder("lengths_resume");
  TestOptions options = options_of("1f1b", "sequential", 2);
  options.save.folder = folder.path();
  options.save.files = std::make_shared<Hasty>();
  {
    Trainer trainer(model, options.pipeline, options);
    fit_steps(trainer, data.train, 7);
    EXPECT_GT(trainer.state().counters().position.batch, 0);
  }
  TestOptions elsewhere = options_of("zb-v", "ranks", 2);
  elsewhere.save = options.save;
  Trainer trainer(model, elsewhere.pipeline, elsewhere);
  static_cast<void>(trainer.resume(folder.path()));
  const Course rest = course_of(trainer, data);
  EXPECT_EQ(rest.weights, whole.weights);
  EXPECT_EQ(rest.losses, std::vector<double>(whole.losses.begin() + 7, whole.losses.end()));
  Trainer of_windows(model, elsewhere.pipeline, elsewhere);
  static_cast<void>(of_windows.resume(folder.path()));
  Dataset windows = lines().train;
  windows.windows.documents = nullptr;
  EXPECT_THAT([&] { of_windows.fit(windows); }, ThrowsMessage<Mismatch>(HasSubstr("data differs")));
}

TEST(Lengths, KeepTheBytesThatTheirLongestMicroBatchesPredict) {
  const TrainTest data = lines();
  const ModelSpec model = gpt(data);
  for (const char* schedule : {"1f1b", "zb-h1"}) {
    Trainer trainer = trainer_of(model, options_of(schedule, "sequential", 3));
    const auto predicted = [&](const std::vector<UnitSize>& sizes) {
      return predict_stash_peaks(trainer.executor().program(), trainer.stages(), sizes);
    };
    const auto bound = predicted(unit_sizes(kBatch, kLongest, kMicroBatches, 1));
    const Dataset& train = data.train;
    const std::vector<std::int32_t> sorted =
        longest_first(train, first_rows(static_cast<std::int32_t>(train.size())));
    for (std::size_t first = 0; first + kBatch <= sorted.size(); first += kBatch) {
      Batch batch;
      batch.fill(train, std::span(sorted).subspan(first, kBatch), kMicroBatches);
      std::vector<UnitSize> sizes;
      for (int i = 0; i < kMicroBatches; ++i)
        sizes.push_back({batch.samples(MicroBatch{i}), batch.positions(MicroBatch{i})});
      const StepReport report = trainer.step(batch);
      EXPECT_EQ(report.peak_stash_bytes, predicted(sizes)) << schedule << first;
      EXPECT_EQ(report.positions, batch.positions());
      for (std::size_t rank = 0; rank < bound.size(); ++rank)
        EXPECT_LE(report.peak_stash_bytes[rank], bound[rank]);
      if (first == 0) {
        EXPECT_EQ(report.peak_stash_bytes, bound) << schedule;
      }
    }
  }
}

TEST(Lengths, AreJudgedDocumentByDocumentWithExactWeights) {
  const TrainTest data = lines(200);
  const ModelSpec model = gpt(data);
  Trainer trainer = trainer_of(model, options_of("1f1b", "sequential", 2));
  const Score score = trainer.evaluate(data.test);
  EXPECT_EQ(score.samples, data.test.size());
  EXPECT_EQ(score.loss.evaluated, static_cast<std::int64_t>(text_of_targets(data.test).size()));
  EXPECT_EQ(score.loss.weight, static_cast<double>(score.loss.evaluated));
  const Score one_by_one = trainer.evaluate(data.test, 1);
  EXPECT_NEAR(one_by_one.loss.sum, score.loss.sum, 1e-6 * score.loss.sum);
  EXPECT_THAT([&] { (void)trainer.predict(data.test); },
              ThrowsMessage<InvalidArgument>(HasSubstr("make no one tensor of predictions")));
}

TEST(Lengths, ThatDifferBetweenRanksAreRefused) {
  const TrainTest data = lines();
  const ModelSpec model = gpt(data);
  on_ranks(2, [&](Endpoint& endpoint, ProcessGroup& group) {
    const TestOptions options = options_of("1f1b", "ranks", 2);
    const Program program = generate("1f1b", {.ranks = 2, .micro_batches = kMicroBatches});
    Trainer trainer(rank_parts(model, {program}, options, endpoint, group));
    Dataset mine = lines().train;
    if (endpoint.rank() == Rank{1}) mine.windows.documents = nullptr;
    EXPECT_THAT([&] { trainer.fit(mine); },
                ThrowsMessage<Mismatch>(
                    HasSubstr("lengths differs: rank 0 has 'bucket', rank 1 has 'fixed'")));
  });
}

}  // namespace
}  // namespace millrace
