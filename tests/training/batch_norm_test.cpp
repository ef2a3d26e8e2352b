// Batch norm in training: statistics that no cut, schedule or executor changes, that a skipped step
// leaves alone, and a residual network that reaches its accuracy.
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/training/trainer.hpp"
#include "training/first_digits.hpp"
#include "training/residual_network.hpp"

namespace millrace::testing_training {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

ModelSpec small_network(const char* statistics = "deferred") {
  ModelSpec model = parse_model("conv:8x8x1-4-4-10");
  for (LayerSpec& layer : model.layers)
    if (layer.kind == "batch_norm") layer.settings.set("statistics", statistics);
  return model;
}

TestOptions job(const std::string& schedule, const std::string& executor, int ranks) {
  TestOptions options = plain_options(ranks, 4);
  options.step.optimizer.kind = OptimizerKind::Adam;
  options.step.learning_rate.base = 0.01;
  options.step.clip_norm = 0.5;
  options.fit.batch_size = 22;
  options.fit.epochs = 2;
  options.pipeline.schedule = schedule;
  options.run.executor = executor;
  return options;
}

std::string hash_after(const ModelSpec& model, const TestOptions& options) {
  Trainer trainer(model, options.pipeline, options);
  trainer.fit(first_digits(50));
  return trainer.weights_hash();
}

using Job = std::tuple<std::string, std::string, std::string>;

class BatchNormBits : public testing::TestWithParam<Job> {};

TEST_P(BatchNormBits, EverySchedule_HasBitsOfOneRank) {
  const auto& [executor, statistics, precision] = GetParam();
  ModelSpec model = small_network(statistics.c_str());
  model.precision = precision == "f32" ? DType::F32 : DType::F16;
  const std::string alone = hash_after(model, job("gpipe", "sequential", 1));
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1"})
    EXPECT_EQ(hash_after(model, job(schedule, executor, 3)), alone) << schedule;
  TestOptions recomputing = job("1f1b", executor, 4);
  recomputing.run.recompute = parse_recompute("all");
  EXPECT_EQ(hash_after(model, recomputing), alone);
}

INSTANTIATE_TEST_SUITE_P(Jobs,
                         BatchNormBits,
                         testing::Combine(testing::Values("sequential", "ranks", "flow-graph"),
                                          testing::Values("deferred", "immediate"),
                                          testing::Values("f32", "f16")),
                         [](const auto& of) {
                           std::string name = std::get<0>(of.param) + "_" + std::get<1>(of.param) +
                                              "_" + std::get<2>(of.param);
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

std::vector<float> numbers(const Trainer& trainer, const std::string& name) {
  const auto values = trainer.state().read(name).as<float>();
  return {values.begin(), values.end()};
}

TEST(BatchNormTraining, Statistics_ChangeOncePerStep) {
  for (const char* statistics : {"deferred", "immediate"}) {
    TestOptions options = job("1f1b", "sequential", 2);
    options.step.max_skipped = 2;
    Trainer trainer(small_network(statistics), options.pipeline, options);
    bool overflow = false;
    std::vector<std::string> seen;
    trainer.before_update = [&](std::span<Parameter* const> parameters) {
      seen.clear();
      for (Parameter* parameter : parameters) seen.push_back(parameter->name);
      if (overflow) parameters[0]->gradient.as<float>()[0] = std::numeric_limits<float>::infinity();
    };
    const Dataset data = first_digits(44);
    Loader loader(data, {.batch_size = 22, .micro_batches = 4});
    (void)trainer.step(loader.next());
    EXPECT_THAT(seen, testing::Contains("layers.2.weight"));
    EXPECT_THAT(seen, testing::Not(testing::Contains(HasSubstr("running"))));
    const std::vector<float> before = numbers(trainer, "layers.2.running_mean");
    const float once = std::string(statistics) == "deferred" ? 1.0F : 4.0F;
    EXPECT_EQ(numbers(trainer, "layers.2.batches_tracked")[0], once);
    overflow = true;
    EXPECT_TRUE(trainer.step(loader.next()).skipped);
    EXPECT_EQ(numbers(trainer, "layers.2.running_mean"), before);
    EXPECT_EQ(numbers(trainer, "layers.2.batches_tracked")[0], once);
    overflow = false;
    (void)trainer.step(loader.next());
    EXPECT_EQ(numbers(trainer, "layers.2.batches_tracked")[0], 2 * once);
  }
}

TEST(BatchNormTraining, Statistics_IgnoreOptimizerAndLossScale) {
  TestOptions options = job("1f1b", "sequential", 2);
  options.step.optimizer.weight_decay = 0.1;
  const std::string plain = hash_after(small_network(), options);
  options.step.loss_scale = parse_loss_scale("static:1024");
  EXPECT_EQ(hash_after(small_network(), options), plain);
  Trainer trainer(small_network(), options.pipeline, options);
  EXPECT_FALSE(trainer.state().is_trained("layers.2.running_mean"));
  EXPECT_THAT(trainer.state().parts("layers.2.running_mean"),
              testing::ElementsAre("value", "gradient"));
  EXPECT_EQ(trainer.state().parts("layers.2.weight").size(), 4U);
}

TEST(BatchNormTraining, Replicas_ShareDeferredStatistics) {
  TestOptions options = job("1f1b", "sequential", 2);
  options.fit.epochs = 1;
  Trainer alone(small_network(), options.pipeline, options);
  options.pipeline.schedule = "chimera";
  Trainer trainer(small_network(), options.pipeline, options);
  trainer.fit(first_digits(22));
  alone.fit(first_digits(22));
  for (const char* name : {"layers.2.running_mean", "layers.2.running_var"}) {
    const auto shared = numbers(trainer, name);
    const auto expected = numbers(alone, name);
    for (std::size_t i = 0; i < shared.size(); ++i) EXPECT_NEAR(shared[i], expected[i], 1e-6);
  }
  EXPECT_EQ(numbers(trainer, "layers.2.batches_tracked")[0], 1);
  EXPECT_THAT([&] { const Trainer refused(small_network("immediate"), options.pipeline, options); },
              ThrowsMessage<InvalidArgument>(HasSubstr("can have no copies")));
}

TEST(BatchNormTraining, WarnsThatMicroBatchesDecide) {
  EXPECT_THAT(trainer_of(small_network(), job("1f1b", "sequential", 2)).warnings(),
              testing::ElementsAre(HasSubstr("each of the 4 micro-batches")));
  TestOptions whole = job("1f1b", "sequential", 1);
  whole.pipeline.shape.micro_batches = 1;
  EXPECT_TRUE(Trainer(small_network(), whole.pipeline, whole).warnings().empty());
  EXPECT_TRUE(
      trainer_of(parse_model("mlp:64-8-10"), job("1f1b", "sequential", 2)).warnings().empty());
}

TestOptions in_micro_batches(std::int64_t batch_size, int micro_batches) {
  TestOptions options = plain_options(2, micro_batches);
  options.fit.batch_size = batch_size;
  options.fit.epochs = 1;
  return options;
}

TEST(BatchNormOverOneValue, EveryMicroBatch_IsRejected) {
  const ModelSpec model = parse_model("mlp:64-32-10,norm=batch");
  const Dataset data = first_digits(60);
  for (const std::int64_t size : {2, 8}) {
    Trainer trainer = trainer_of(model, in_micro_batches(size, 8));
    EXPECT_THAT([&] { trainer.fit(data); },
                ThrowsMessage<InvalidArgument>(
                    HasSubstr("micro_batches: " + std::to_string(size) +
                              " samples in 8 micro-batches give batch norm one value a channel")));
    Batch batch(first_digits(static_cast<int>(size)), 8);
    EXPECT_THROW(trainer.step(batch), InvalidArgument);
    EXPECT_EQ(trainer.state().counters().mini_batches, 0);
  }
  // As few samples in all; a channel of images has a value per pixel; layer norm needs no others.
  Trainer few = trainer_of(model, in_micro_batches(128, 8));
  EXPECT_THROW(few.fit(first_digits(8)), InvalidArgument);
  Trainer images = trainer_of(small_network(), in_micro_batches(8, 8));
  EXPECT_NO_THROW(images.fit(data));
  Trainer rows = trainer_of(parse_model("mlp:64-32-10,norm"), in_micro_batches(8, 8));
  EXPECT_NO_THROW(rows.fit(data));
}

TEST(BatchNormOverOneValue, SomeMicroBatches_Warn) {
  const ModelSpec model = parse_model("mlp:64-32-10,norm=batch");
  Trainer trainer = trainer_of(model, in_micro_batches(12, 8));
  EXPECT_THAT(trainer.warnings(),
              testing::Contains(HasSubstr(
                  "one value a channel in 4 of the 8 micro-batches of a mini-batch of 12")));
  EXPECT_NO_THROW(trainer.fit(first_digits(24)));
  const Trainer last = trainer_of(model, in_micro_batches(16, 8));
  EXPECT_THAT(last.warnings(19),
              testing::Contains(HasSubstr("in 3 of the 8 micro-batches of a mini-batch of 3")));
  EXPECT_THAT(last.warnings(16), testing::Not(testing::Contains(HasSubstr("one value"))));
}

/// `./run soak` trains five of them five times as long, to 98.5 %.
TEST(ResidualNetwork, ReachesTheAccuracyOfItsKind) {
  EXPECT_GE(accuracy_of_residual_networks(2, 8), 0.97);
}

}  // namespace
}  // namespace millrace::testing_training
