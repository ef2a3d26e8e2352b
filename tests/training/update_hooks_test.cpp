// What a user may do to an update: look at the gradients and change them, freeze parameters, give
// the rate; and what ends a training that only skips.
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/training/optimizer.hpp"
#include "millrace/training/ranks.hpp"
#include "tests/training/first_digits.hpp"
#include "tests/training/on_ranks.hpp"

namespace millrace {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing_training::first_digits;
using testing_training::kModel;
using testing_training::plain_options;

std::map<std::string, std::vector<float>> values_of(Trainer& trainer) {
  std::map<std::string, std::vector<float>> values;
  for (const Parameter* parameter : trainer.state().parameters()) {
    const auto span = parameter->value.as<float>();
    values[parameter->name] = {span.begin(), span.end()};
  }
  return values;
}

double norm_of(std::span<Parameter* const> parameters) {
  std::vector<double> sums;
  for (const Parameter* parameter : parameters)
    sums.push_back(sum_of_squares(parameter->gradient.as<float>()));
  return gradient_norm(sums, std::nullopt).norm;
}

TEST(BeforeUpdate, SeesWholeGradientBeforeTheNorm) {
  for (const char* executor : {"sequential", "flow-graph", "ranks"}) {
    TestOptions options = plain_options(3, 4);
    options.run.executor = executor;
    Trainer trainer(parse_model(kModel), options.pipeline, options);
    const auto thread_of_test = std::this_thread::get_id();
    std::vector<std::string> names;
    double norm = 0;
    trainer.before_update = [&](std::span<Parameter* const> parameters) {
      EXPECT_EQ(std::this_thread::get_id(), thread_of_test);
      for (const Parameter* parameter : parameters) names.push_back(parameter->name);
      norm = norm_of(parameters);
    };
    Batch batch(first_digits(20), 4);
    const StepReport report = trainer.step(batch);

    EXPECT_THAT(names,
                ElementsAre("layers.0.bias",
                            "layers.0.weight",
                            "layers.1.bias",
                            "layers.1.weight",
                            "layers.2.bias",
                            "layers.2.weight"));
    EXPECT_EQ(norm, report.gradient_norm) << executor;
  }
}

TEST(BeforeUpdate, MayChangeGradientsAndCopiesFollow) {
  TestOptions options = plain_options(2, 4);
  options.pipeline.schedule = "chimera";
  Trainer trainer(parse_model("mlp:64-16-10"), options.pipeline, options);
  trainer.before_update = [](std::span<Parameter* const> parameters) {
    for (Parameter* parameter : parameters)
      for (float& value : parameter->gradient.as<float>()) value *= 0.25F;
  };
  options.step.learning_rate.base /= 4;
  Trainer slower(parse_model("mlp:64-16-10"), options.pipeline, options);
  Batch batch(first_digits(20), 4);
  for (int step = 0; step < 3; ++step) {
    const StepReport report = trainer.step(batch);
    // Powers of two: the same bits.
    EXPECT_EQ(report.gradient_norm * 4, slower.step(batch).gradient_norm);
  }
  EXPECT_EQ(trainer.weights_hash(), slower.weights_hash());
}

TEST(BeforeUpdate, Throwing_EndsTheStepOnly) {
  Trainer trainer = trainer_of(parse_model(kModel), plain_options(2, 2));
  Batch batch(first_digits(8), 2);
  const std::string before = trainer.weights_hash();
  trainer.before_update = [](std::span<Parameter* const>) { throw Error("I do not like it"); };
  EXPECT_THROW(trainer.step(batch), Error);
  EXPECT_EQ(trainer.weights_hash(), before);
  trainer.before_update = nullptr;
  Trainer untouched = trainer_of(parse_model(kModel), plain_options(2, 2));
  trainer.step(batch);
  untouched.step(batch);
  EXPECT_EQ(trainer.weights_hash(), untouched.weights_hash());
}

TEST(Frozen, ParametersStayAndAreOutsideTheNorm) {
  TestOptions options = plain_options(3, 4);
  options.step.optimizer = {.kind = OptimizerKind::AdamW, .weight_decay = 0.1};
  options.step.parameters = {{.pattern = "layers.0.*", .frozen = true},
                             {.pattern = "*.bias", .frozen = true}};
  Trainer trainer(parse_model(kModel), options.pipeline, options);
  double others = 0;
  trainer.before_update = [&](std::span<Parameter* const> parameters) {
    std::vector<Parameter*> free;
    for (Parameter* parameter : parameters)
      if (parameter->name == "layers.1.weight" || parameter->name == "layers.2.weight")
        free.push_back(parameter);
    others = norm_of(free);
  };
  const auto before = values_of(trainer);
  Batch batch(first_digits(20), 4);
  const StepReport report = trainer.step(batch);

  EXPECT_EQ(report.gradient_norm, others);
  for (const auto& [name, values] : values_of(trainer)) {
    const bool free = name == "layers.1.weight" || name == "layers.2.weight";
    EXPECT_EQ(values != before.at(name), free) << name;
  }
  for (const Parameter* parameter : trainer.state().parameters())
    EXPECT_THAT(parameter->gradient.as<float>(), Each(0.0F)) << parameter->name;
}

TEST(Frozen, InfiniteGradient_SkipsNoStep) {
  Trainer trainer = trainer_of(parse_model(kModel), plain_options(2, 2));
  trainer.before_update = [](std::span<Parameter* const> parameters) {
    parameters.front()->gradient.as<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  };
  Batch batch(first_digits(8), 2);
  EXPECT_TRUE(trainer.step(batch).skipped);
  trainer.state().freeze("layers.0.bias");
  EXPECT_FALSE(trainer.step(batch).skipped);
  trainer.state().freeze("layers.0.bias", false);
  EXPECT_TRUE(trainer.step(batch).skipped);
}

TEST(Frozen, TiedWeightsAndCopiesStayTogether) {
  TestOptions options = plain_options(2, 4);
  options.pipeline.schedule = "chimera";
  options.step.tied = {{"layers.1.weight", "layers.3.weight"}};
  options.step.parameters = {{.pattern = "layers.3.weight", .frozen = true}};
  Trainer trainer(parse_model("mlp:64-16-16-16-16-10"), options.pipeline, options);
  const auto before = values_of(trainer);
  Batch batch(first_digits(20), 4);
  trainer.step(batch);
  const auto after = values_of(trainer);

  EXPECT_EQ(after.at("layers.1.weight"), before.at("layers.1.weight"));
  EXPECT_EQ(after.at("layers.3.weight"), before.at("layers.3.weight"));
  EXPECT_NE(after.at("layers.2.weight"), before.at("layers.2.weight"));
  for (const HostedStage& hosted : trainer.stages())
    for (const Parameter* parameter : hosted.body->parameters()) {
      const auto values = parameter->value.as<float>();
      EXPECT_EQ(std::vector<float>(values.begin(), values.end()), after.at(parameter->name));
    }
}

TEST(Frozen, PatternsThatMeanNothingAreRefusedWithTheNearest) {
  Trainer trainer = trainer_of(parse_model(kModel), plain_options(3, 4));
  EXPECT_NO_THROW(trainer.state().freeze("*"));
  EXPECT_NO_THROW(trainer.state().freeze("l*2*t"));
  for (const char* nothing : {"", "layers.0", "layers.0.weights", "*.gain", "layers.*.bia"})
    EXPECT_THROW(trainer.state().freeze(nothing), InvalidArgument) << nothing;
  try {
    trainer.state().freeze("layer.2.weight");
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("the nearest of 6 is 'layers.2.weight'"));
  }
}

std::vector<double> rates_of_fit(Trainer& trainer, const Dataset& data) {
  std::vector<double> rates;
  trainer.on_step = [&](const StepReport& report) { rates.push_back(report.learning_rate); };
  trainer.fit(data);
  return rates;
}

TEST(Fit, SecondFit_TrainsAsTheFirst) {
  const Dataset data = first_digits(40);
  for (const auto kind : {LearningRateKind::Linear, LearningRateKind::Cosine}) {
    TestOptions options = plain_options(2, 2);
    options.fit.batch_size = 10;
    options.fit.epochs = 2;
    options.step.learning_rate = {.kind = kind, .base = 0.1, .warm_up = 2};
    Trainer trainer(parse_model(kModel), options.pipeline, options);
    const auto first = rates_of_fit(trainer, data);
    const std::string hash = trainer.weights_hash();

    EXPECT_EQ(trainer.options().step.learning_rate.total_updates, 0);
    EXPECT_EQ(first.size(), 8U);
    EXPECT_THAT(first, Each(testing::Gt(0)));
    EXPECT_EQ(rates_of_fit(trainer, data), first);
    EXPECT_NE(trainer.weights_hash(), hash);
    EXPECT_EQ(trainer.global_step(), 16);
  }
}

TEST(Fit, CurveWithFixedLength_Continues) {
  const Dataset data = first_digits(40);
  TestOptions options = plain_options(2, 2);
  options.fit.batch_size = 10;
  options.fit.epochs = 1;
  options.step.learning_rate = {.kind = LearningRateKind::Linear, .base = 0.1, .total_updates = 8};
  Trainer trainer(parse_model(kModel), options.pipeline, options);
  rates_of_fit(trainer, data);
  const auto second = rates_of_fit(trainer, data);
  for (std::size_t i = 0; i < second.size(); ++i)
    EXPECT_EQ(second[i], options.step.learning_rate.at(4 + static_cast<std::int64_t>(i)));
}

TEST(OwnLoop, CurveWithoutEnd_IsRejected) {
  for (const auto kind : {LearningRateKind::Linear, LearningRateKind::Cosine}) {
    TestOptions options = plain_options(2, 2);
    options.step.learning_rate = {.kind = kind};
    Trainer trainer(parse_model(kModel), options.pipeline, options);
    const std::string before = trainer.weights_hash();
    Batch batch(first_digits(8), 2);
    try {
      trainer.step(batch);
      ADD_FAILURE() << "no exception";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr("total_updates, which is 0"));
    }
    EXPECT_EQ(trainer.weights_hash(), before);
    EXPECT_EQ(trainer.global_step(), 0);
  }
}

TEST(OwnLoop, TakesTheRateFromAFunction) {
  TestOptions options = plain_options(2, 2);
  options.step.learning_rate.function = [](std::int64_t update) {
    return 0.5 / static_cast<double>(1 + update);
  };
  Trainer trainer(parse_model(kModel), options.pipeline, options);
  Batch batch(first_digits(8), 2);
  for (int update = 0; update < 4; ++update)
    EXPECT_EQ(trainer.step(batch).learning_rate, 0.5 / (1 + update));
}

/// Two mini-batches: one to learn from, one whose gradient is not finite.
struct GoodAndBad {
  GoodAndBad() : good(first_digits(8), 2) {
    Dataset data = first_digits(8);
    data.inputs[0].values.as<float>()[70] = std::numeric_limits<float>::infinity();
    bad = Batch(data, 2);
  }
  Batch good, bad;
};

TEST(Diverged, EndsALoopAfterSoManySkippedStepsInARow) {
  GoodAndBad batches;
  TestOptions options = plain_options(2, 2);
  options.step.max_skipped = 3;
  Trainer trainer(parse_model(kModel), options.pipeline, options);
  for (int round = 0; round < 2; ++round) {
    EXPECT_TRUE(trainer.step(batches.bad).skipped);
    EXPECT_TRUE(trainer.step(batches.bad).skipped);
    EXPECT_FALSE(trainer.step(batches.good).skipped);
  }
  EXPECT_NO_THROW(trainer.step(batches.bad));
  EXPECT_NO_THROW(trainer.step(batches.bad));
  try {
    trainer.step(batches.bad);
    ADD_FAILURE() << "no exception";
  } catch (const Diverged& error) {
    EXPECT_STREQ(error.what(),
                 "training diverged: the gradient was not finite in 3 steps in a row, each of them "
                 "skipped, after 2 updates; max_skipped allows no more");
  }
  EXPECT_FALSE(trainer.step(batches.good).skipped);
}

/// A mini-batch whose targets weigh so much each.
Batch weighing(float weight, int micro_batches) {
  Dataset data = first_digits(8, 20);
  Tensor weights(DType::F32, {8});
  std::ranges::fill(weights.as<float>(), weight);
  data.targets.push_back({"weights", std::move(weights)});
  return Batch(data, micro_batches);
}

TEST(WithoutWeight, MiniBatch_IsSkippedAndChangesNothing) {
  for (const char* executor : {"sequential", "flow-graph", "ranks"}) {
    TestOptions options = plain_options(2, 2);
    options.run.executor = executor;
    Batch good = weighing(1, 2), none = weighing(0, 2);
    Trainer plain(parse_model(kModel), options.pipeline, options),
        trainer(parse_model(kModel), options.pipeline, options);
    for (int round = 0; round < 2; ++round) {
      plain.step(good);
      trainer.step(good);
      const StepReport report = trainer.step(none);
      EXPECT_TRUE(report.skipped && report.has_no_weight());
      EXPECT_EQ(report.mean_loss(), 0);
    }
    EXPECT_EQ(trainer.weights_hash(), plain.weights_hash());
    EXPECT_EQ(trainer.global_step(), 2);
    EXPECT_EQ(trainer.state().counters().mini_batches, 4);
  }
}

TEST(WithoutWeight, MiniBatch_CountsAsNoSkippedStep) {
  GoodAndBad batches;
  Batch none = weighing(0, 2);
  TestOptions options = plain_options(2, 2);
  options.step.max_skipped = 2;
  Trainer trainer(parse_model(kModel), options.pipeline, options);
  trainer.step(batches.bad);
  for (int i = 0; i < 3; ++i) EXPECT_NO_THROW(trainer.step(none));
  EXPECT_EQ(trainer.state().counters().skipped_in_a_row, 1);
  EXPECT_THROW(trainer.step(batches.bad), Diverged);
}

TEST(WithoutWeight, MiniBatch_IsSkippedByEveryProcess) {
  TestOptions options = plain_options(2, 2);
  const Program program = generate("1f1b", {.ranks = 2, .micro_batches = 2});
  testing_training::on_ranks(2, [&](Endpoint& endpoint, ProcessGroup& group) {
    Trainer trainer(rank_parts(parse_model(kModel), {program}, options, endpoint, group));
    Batch good = weighing(1, 2), none = weighing(0, 2);
    EXPECT_FALSE(trainer.step(good).skipped);
    EXPECT_TRUE(trainer.step(none).has_no_weight());
    EXPECT_FALSE(trainer.step(good).skipped);
    EXPECT_EQ(trainer.global_step(), 2);
  });
}

/// A fit that meets one, as its account says.
class OneWithout final : public BatchSource {
 public:
  Batch& next() override {
    Batch& batch = position_.batch == 1 ? none_ : good_;
    batch.epoch = position_.epoch;
    batch.number = position_.batch++;
    if (position_.batch == 3) position_ = {position_.epoch + 1, 0};
    return batch;
  }
  [[nodiscard]] DataPosition position() const override { return position_; }
  void seek(const DataPosition& position) override { position_ = position; }
  [[nodiscard]] std::int64_t batches_per_epoch() const override { return 3; }

 private:
  Batch good_ = weighing(1, 2), none_ = weighing(0, 2);
  DataPosition position_;
};

TEST(WithoutWeight, MiniBatches_AreCountedByFit) {
  TestOptions options = plain_options(2, 2);
  options.fit.epochs = 2;
  Trainer trainer(parse_model(kModel), options.pipeline, options);
  OneWithout batches;
  const FitReport report = trainer.fit(batches);
  EXPECT_EQ(report.skipped(), 2);
  EXPECT_EQ(report.without_weight(), 2);
  EXPECT_EQ(report.epochs[1].updates, 2);
}

TEST(Diverged, EndsAFitAndTellsTheLastStepBefore) {
  Dataset data = first_digits(40);
  for (float& value : data.inputs[0].values.as<float>())
    value = std::numeric_limits<float>::infinity();
  TestOptions options = plain_options(2, 2);
  options.fit.batch_size = 10;
  Trainer trainer(parse_model(kModel), options.pipeline, options);
  int told = 0;
  trainer.on_step = [&](const StepReport&) { ++told; };
  EXPECT_THROW(trainer.fit(data), Diverged);
  EXPECT_EQ(told, 25);

  options.step.max_skipped = 0;
  EXPECT_THROW(Trainer(parse_model(kModel), options.pipeline, options), InvalidArgument);
}

}  // namespace
}  // namespace millrace
