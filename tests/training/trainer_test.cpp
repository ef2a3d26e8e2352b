// What a step means: the exact weighted mean, one clip, one verdict, one update; and what happens
// when a part of it fails.
#include "millrace/training/trainer.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/stages/models.hpp"
#include "millrace/stages/partition.hpp"
#include "millrace/training/records.hpp"
#include "training/first_digits.hpp"

namespace millrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_training::first_digits;
using testing_training::kModel;
using testing_training::plain_options;

std::vector<float> weights_of(Trainer& trainer) {
  std::vector<float> all;
  for (const Parameter* parameter : trainer.state().parameters())
    for (const float value : parameter->value.as<float>()) all.push_back(value);
  return all;
}

TEST(Step, UnequalMicroBatches_EqualOneBatch) {
  for (const int n : {1, 3, 7, 10, 29}) {
    const Dataset data = first_digits(n);
    Trainer whole = trainer_of(parse_model(kModel), plain_options(1, 1));
    Batch one(data, 1);
    const StepReport expected = whole.step(one);
    for (const int m : {2, 4, 8})
      for (const int ranks : {1, 3}) {
        Trainer trainer = trainer_of(parse_model(kModel), plain_options(ranks, m));
        Batch batch(data, m);
        const StepReport report = trainer.step(batch);

        EXPECT_NEAR(report.mean_loss(), expected.mean_loss(), 1e-5) << n << " in " << m;
        EXPECT_NEAR(report.gradient_norm, expected.gradient_norm, 1e-5) << n << " in " << m;
        EXPECT_EQ(report.loss.correct, expected.loss.correct);
        const auto moved = weights_of(trainer);
        const auto wanted = weights_of(whole);
        for (std::size_t i = 0; i < moved.size(); ++i) ASSERT_NEAR(moved[i], wanted[i], 1e-5) << n;
      }
  }
}

TEST(Step, ClipsTheNormOfAllStagesTogether) {
  const Dataset data = first_digits(32);
  TestOptions options = plain_options(3, 4);
  Trainer free(parse_model(kModel), options.pipeline, options);
  const auto before = weights_of(free);
  Batch batch(data, 4);
  const StepReport report = free.step(batch);
  options.step.clip_norm = report.gradient_norm / 4;
  Trainer clipped(parse_model(kModel), options.pipeline, options);
  const StepReport clipped_report = clipped.step(batch);

  EXPECT_EQ(report.clip_factor, 1);
  EXPECT_DOUBLE_EQ(clipped_report.clip_factor, 0.25);
  EXPECT_EQ(clipped_report.gradient_norm, report.gradient_norm);
  const auto moved = weights_of(free);
  const auto less = weights_of(clipped);
  for (std::size_t i = 0; i < before.size(); ++i)
    ASSERT_NEAR(less[i] - before[i], (moved[i] - before[i]) / 4, 1e-6);
}

TEST(Step, IsSkippedEverywhereWhenAGradientIsNotFinite) {
  Dataset data = first_digits(8);
  Trainer trainer = trainer_of(parse_model(kModel), plain_options(3, 4));
  const auto before = weights_of(trainer);
  Batch good(data, 4);
  data.inputs[0].values.as<float>()[70] = std::numeric_limits<float>::infinity();
  Batch bad(data, 4);

  const StepReport skipped = trainer.step(bad);
  EXPECT_TRUE(skipped.skipped);
  EXPECT_EQ(trainer.global_step(), 0);
  EXPECT_EQ(weights_of(trainer), before);

  const StepReport report = trainer.step(good);
  EXPECT_FALSE(report.skipped);
  EXPECT_EQ(report.global_step, 1);
  Trainer untouched = trainer_of(parse_model(kModel), plain_options(3, 4));
  untouched.step(good);
  EXPECT_EQ(trainer.weights_hash(), untouched.weights_hash());
}

TEST(Step, RefusesALossThatWeighsOtherwiseThanSaid) {
  const Dataset data = first_digits(8);
  Trainer trainer = trainer_of(parse_model(kModel), plain_options(1, 2));
  const std::string before = trainer.weights_hash();
  Batch batch(data, 2);
  StepData& raw = batch;

  EXPECT_THROW(trainer.step(raw, 9), InvalidArgument);
  EXPECT_EQ(trainer.weights_hash(), before);
  EXPECT_NO_THROW(trainer.step(raw, 8));
}

TEST(Step, CountedStashBytes_ArePredicted) {
  const Dataset data = first_digits(29);
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1", "interleaved"})
    for (const bool recompute : {false, true})
      for (const char* executor : {"sequential", "flow-graph", "ranks"}) {
        TestOptions options = plain_options(3, 6);
        options.pipeline.schedule = schedule;
        options.run.executor = executor;
        if (recompute) options.run.recompute = {.kind = RecomputeKind::All};
        Trainer trainer(parse_model("mlp:64-20-16-24-18-12-10"), options.pipeline, options);
        Batch batch(data, 6);
        const StepReport report = trainer.step(batch);

        EXPECT_EQ(report.peak_stash_bytes,
                  predict_stash_peaks(
                      trainer.executor().program(), trainer.stages(), unit_sizes(29, 1, 6, 1)))
            << schedule << " " << executor << " recompute " << recompute;
        EXPECT_GT(report.peak_stash_bytes[0], 0U);
      }
}

TEST(Fit, CountsUpdatesAndTellsEveryStepAndEpoch) {
  const Dataset data = first_digits(50);
  TestOptions options = plain_options(2, 2);
  options.fit.batch_size = 20;
  options.fit.epochs = 2;
  options.step.learning_rate = {.kind = LearningRateKind::Linear, .base = 0.6};
  Trainer trainer(parse_model(kModel), options.pipeline, options);
  std::vector<std::int64_t> sizes;
  std::vector<double> rates;
  std::vector<std::int64_t> epochs;
  trainer.on_step = [&](const StepReport& report) {
    sizes.push_back(report.samples);
    rates.push_back(report.learning_rate);
  };
  trainer.on_epoch = [&](const EpochReport& report) { epochs.push_back(report.samples); };
  const FitReport fitted = trainer.fit(data);

  EXPECT_EQ(sizes, (std::vector<std::int64_t>{20, 20, 10, 20, 20, 10}));
  EXPECT_EQ(epochs, (std::vector<std::int64_t>{50, 50}));
  EXPECT_EQ(fitted.samples, 100);
  EXPECT_EQ(trainer.global_step(), 6);
  for (std::size_t i = 0; i < rates.size(); ++i)
    EXPECT_NEAR(rates[i], 0.6 * (1 - static_cast<double>(i) / 6), 1e-12);
}

TEST(Evaluate, AnyBatchSize_TrainingUnchanged) {
  const Dataset data = first_digits(101);
  TestOptions options = plain_options(2, 4);
  options.fit.epochs = 1;
  options.fit.batch_size = 32;
  const ModelSpec model = parse_model("mlp:64-20-16-10,dropout=0.2");
  Trainer trainer(model, options.pipeline, options);
  trainer.fit(data);
  const std::string hash = trainer.weights_hash();
  const Score expected = trainer.evaluate(data, 101);

  for (const std::int64_t batch_size : {1, 2, 7, 32, 100, 1000}) {
    const Score score = trainer.evaluate(data, batch_size);
    EXPECT_EQ(score.loss.correct, expected.loss.correct) << batch_size;
    EXPECT_NEAR(score.mean_loss(), expected.mean_loss(), 1e-6) << batch_size;
  }
  EXPECT_EQ(trainer.weights_hash(), hash);
  EXPECT_EQ(expected.samples, 101);
}

/// Sgd that throws at one call.
class Failing final : public Optimizer {
 public:
  explicit Failing(int at) : at_(at), sgd_(make_optimizer({.kind = OptimizerKind::Sgd})) {}

  [[nodiscard]] int slots() const override { return 0; }
  [[nodiscard]] std::string_view slot_name(int) const override { return ""; }
  void update(const UpdateSettings& settings,
              std::span<float> value,
              std::span<const float> gradient,
              std::span<const std::span<float>> state) const override {
    if (calls_++ == at_) throw std::runtime_error("no memory in the optimizer");
    sgd_->update(settings, value, gradient, state);
  }

 private:
  int at_;
  std::unique_ptr<Optimizer> sgd_;
  mutable std::atomic<int> calls_ = 0;
};

TEST(Failure, InOptimizer_NamesRankAndStage) {
  const Dataset data = first_digits(16);
  for (const char* executor : {"sequential", "flow-graph", "ranks"})
    for (int at = 0; at < 6; ++at) {
      TestOptions options = plain_options(3, 4);
      options.run.executor = executor;
      options.step.custom_optimizer = std::make_shared<Failing>(at);
      Trainer trainer(parse_model(kModel), options.pipeline, options);
      Batch batch(data, 4);
      try {
        trainer.step(batch);
        ADD_FAILURE() << "no exception at call " << at;
      } catch (const StepError& error) {
        EXPECT_EQ(error.action().op, Op::OptimizerStep);
        EXPECT_EQ(error.action().stage.value, error.rank().value);
        EXPECT_THAT(error.what(),
                    AllOf(HasSubstr("optimizer step of stage"),
                          HasSubstr("on rank"),
                          HasSubstr("no memory in the optimizer")));
      }
      EXPECT_EQ(trainer.global_step(), 0);
      for (const Parameter* parameter : trainer.state().parameters())
        for (const float value : parameter->gradient.as<float>()) ASSERT_EQ(value, 0.0F);
      EXPECT_EQ(trainer.step(batch).global_step, 1);
    }
}

/// Data whose targets throw at one micro-batch of one step.
class FailingData final : public StepData {
 public:
  FailingData(Batch& batch, int micro_batch) : batch_(batch), micro_batch_(micro_batch) {}

  TensorList inputs(const Unit& unit) override { return batch_.inputs(unit); }
  TensorList targets(const Unit& unit) override {
    if (unit.micro_batch.value == micro_batch_) throw DataError("a page of data is missing");
    return batch_.targets(unit);
  }
  [[nodiscard]] std::int64_t first_sample(const Unit& unit) const override {
    return batch_.first_sample(unit);
  }

 private:
  Batch& batch_;
  int micro_batch_;
};

TEST(Failure, OfAPassLeavesNoTraceInTheNextStep) {
  const Dataset data = first_digits(16);
  for (const char* executor : {"sequential", "flow-graph", "ranks"})
    for (int at = 0; at < 4; ++at) {
      TestOptions options = plain_options(3, 4);
      options.run.executor = executor;
      Trainer trainer(parse_model(kModel), options.pipeline, options);
      Trainer untouched(parse_model(kModel), options.pipeline, options);
      Batch batch(data, 4);
      FailingData failing(batch, at);
      EXPECT_THROW(trainer.step(failing, 16), StepError);

      trainer.step(batch);
      untouched.step(batch);
      EXPECT_EQ(trainer.weights_hash(), untouched.weights_hash()) << executor << " " << at;
    }
}

TEST(Trainer, BoundariesOfCustomStages_AreRejected) {
  Bodies bodies;
  for (auto& stage : build_stages(parse_model(kModel), std::vector<int>{0, 1, 3}, 1))
    bodies.push_back(std::move(stage));
  const Plan plan = {generate("1f1b", {.ranks = 2, .micro_batches = 4}), {1}};
  EXPECT_THROW(Trainer(plan, std::move(bodies)), InvalidArgument);
}

TEST(Trainer, RefusesWhatDoesNotFit) {
  const ModelSpec model = parse_model(kModel);

  EXPECT_THROW(trainer_of(model, plain_options(4, 2)), InvalidArgument);  // 3 layers
  EXPECT_THROW(trainer_of(model, plain_options(2, 0)), InvalidArgument);
  TestOptions options = plain_options(2, 2);
  options.pipeline.boundaries = {1, 2};
  EXPECT_THROW(Trainer(model, options.pipeline, options), InvalidArgument);
  options = plain_options(2, 2);
  options.step.clip_norm = 0;
  EXPECT_THROW(Trainer(model, options.pipeline, options), InvalidArgument);
  Trainer trainer = trainer_of(model, plain_options(2, 2));
  Batch batch(first_digits(8), 3);
  EXPECT_THROW(trainer.step(batch), InvalidArgument);
}

TEST(Trainer, KeepsTheCopiesOfABidirectionalScheduleEqual) {
  const Dataset data = first_digits(64);
  std::string expected;
  for (const char* executor : {"sequential", "flow-graph", "ranks"}) {
    TestOptions options = plain_options(2, 4);
    options.pipeline.schedule = "chimera";
    options.run.executor = executor;
    options.fit.batch_size = 32;
    options.fit.epochs = 2;
    Trainer trainer(parse_model(kModel), options.pipeline, options);
    trainer.fit(data);

    std::vector<std::vector<Parameter*>> copies(2);
    for (int stage = 0; stage < 2; ++stage)
      for (const HostedStage& hosted : trainer.stages())
        if (hosted.stage.value == stage)
          for (Parameter* parameter : hosted.body->parameters())
            copies[hosted.replica.index()].push_back(parameter);
    ASSERT_EQ(copies[0].size(), copies[1].size());
    for (std::size_t i = 0; i < copies[0].size(); ++i) {
      const auto first = copies[0][i]->value.as<float>();
      const auto second = copies[1][i]->value.as<float>();
      EXPECT_TRUE(std::equal(first.begin(), first.end(), second.begin())) << copies[0][i]->name;
    }
    if (expected.empty()) expected = trainer.weights_hash();
    EXPECT_EQ(trainer.weights_hash(), expected) << executor;
  }
}

}  // namespace
}  // namespace millrace
