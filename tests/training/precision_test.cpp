// Training in bf16 and f16: one set of bits for every cut, schedule and executor, f32 master values
// that updates move, and a loss scale that is seen nowhere but in what does not overflow.
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/stages/layer.hpp"
#include "millrace/training/trainer.hpp"
#include "training/first_digits.hpp"

namespace millrace::testing_training {
namespace {

ModelSpec model_in(DType precision, const char* text = "mlp:64-24-24-16-10,norm,residual") {
  ModelSpec model = parse_model(text);
  model.precision = precision;
  return model;
}

TestOptions job_options() {
  TestOptions options = plain_options(1, 4);
  options.step.optimizer.kind = OptimizerKind::AdamW;
  options.step.optimizer.weight_decay = 0.01;
  options.step.learning_rate.base = 3e-3;
  options.step.clip_norm = 0.5;
  options.fit.batch_size = 30;
  options.fit.epochs = 3;
  return options;
}

std::string hash_after(const ModelSpec& model, const TestOptions& options) {
  Trainer trainer(model, options.pipeline, options);
  trainer.fit(first_digits(100));
  return trainer.weights_hash();
}

std::vector<float> copy_of(const Tensor& tensor) {
  const auto values = tensor.as<float>();
  return {values.begin(), values.end()};
}

bool all_rounded(const Tensor& tensor, DType precision) {
  std::vector<float> rounded = copy_of(tensor);
  round_to(precision, rounded);
  return rounded == copy_of(tensor);
}

using Job = std::tuple<DType, std::string>;

class PrecisionBits : public testing::TestWithParam<Job> {};

TEST_P(PrecisionBits, EverySchedule_HasBitsOfOneRank) {
  const auto& [precision, executor] = GetParam();
  const ModelSpec model =
      model_in(precision, "mlp:64-24-24-24-24-24-16-10,norm,residual,dropout=0.1");
  const std::string expected = hash_after(model, job_options());
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1", "interleaved", "v-half"})
    for (const int ranks : {2, 3})
      for (const bool recompute : {false, true}) {
        if (recompute && std::string(schedule) == "v-half") continue;
        TestOptions options = job_options();
        options.pipeline.shape.ranks = ranks;
        options.pipeline.schedule = schedule;
        options.run.executor = executor;
        if (recompute) options.run.recompute = {.kind = RecomputeKind::All};
        if (std::string(schedule) == "interleaved") options.pipeline.shape.micro_batches = 4;
        if (std::string(schedule) == "interleaved" && ranks == 3) continue;
        EXPECT_EQ(hash_after(model, options), expected) << schedule << " on " << ranks;
      }
}

/// 64 rows by 256 columns by 256: products that a library may make of narrow factors.
TEST_P(PrecisionBits, LowPrecisionFactors_HaveBitsOfOneRank) {
  const auto& [precision, executor] = GetParam();
  const ModelSpec model = model_in(precision, "mlp:64-256-256-256-10");
  TestOptions options = job_options();
  options.pipeline.shape.micro_batches = 2;
  options.fit.batch_size = 128;
  options.fit.epochs = 2;
  const auto hash_with = [&] {
    Trainer trainer(model, options.pipeline, options);
    trainer.fit(first_digits(256));
    return trainer.weights_hash();
  };
  const std::string expected = hash_with();
  options.run.executor = executor;
  for (const char* schedule : {"1f1b", "zb-h1"})
    for (const RecomputeKind kind : {RecomputeKind::None, RecomputeKind::All}) {
      options.pipeline.shape.ranks = 3;
      options.pipeline.schedule = schedule;
      options.run.recompute = {.kind = kind};
      EXPECT_EQ(hash_with(), expected) << schedule;
    }
}

INSTANTIATE_TEST_SUITE_P(All,
                         PrecisionBits,
                         testing::Combine(testing::Values(DType::BF16, DType::F16),
                                          testing::Values("sequential", "ranks", "flow-graph")),
                         [](const auto& of) {
                           std::string name = name_of(std::get<0>(of.param));
                           for (const char letter : "_" + std::get<1>(of.param))
                             if (letter != '\0') name += letter == '-' ? '_' : letter;
                           return name;
                         });

TEST(MasterValues, TinyUpdates_ChangeThem) {
  const ModelSpec model = model_in(DType::BF16, "mlp:64-8-10");
  TestOptions options = plain_options(1, 2);
  options.step.learning_rate.base = 1e-4;
  options.fit.batch_size = 20;
  Trainer trainer(model, options.pipeline, options);
  Parameter* weight = nullptr;
  for (Parameter* parameter : trainer.state().parameters())
    if (parameter->name == "layers.0.weight") weight = parameter;
  ASSERT_NE(weight, nullptr);
  const std::vector<float> before = copy_of(trainer.state().read("layers.0.weight"));
  const std::vector<float> rounded_before = copy_of(weight->value);
  EXPECT_FALSE(all_rounded(trainer.state().read("layers.0.weight"), DType::BF16));
  EXPECT_NE(before, rounded_before);
  const std::string hash = trainer.weights_hash();

  options.fit.steps = 1;
  trainer.fit(first_digits(20));
  const std::vector<float> after = copy_of(trainer.state().read("layers.0.weight"));
  std::size_t moved = 0;
  std::size_t rounded_moved = 0;
  for (std::size_t i = 0; i < after.size(); ++i) {
    if (after[i] != before[i]) ++moved;
    if (weight->value.as<float>()[i] != rounded_before[i]) ++rounded_moved;
  }
  EXPECT_GT(moved, after.size() / 4);
  EXPECT_LT(rounded_moved, moved / 4);
  EXPECT_TRUE(all_rounded(weight->value, DType::BF16));
  EXPECT_NE(trainer.weights_hash(), hash);
}

TEST(MasterValues, AreWhatIsReadAndWritten) {
  Trainer trainer = trainer_of(model_in(DType::F16, "mlp:64-8-10"), plain_options(1, 2));
  std::vector<float> wanted(10, 0.1F);
  trainer.state().write("layers.1.bias", wanted);
  EXPECT_EQ(copy_of(trainer.state().read("layers.1.bias")), wanted);
  round_to(DType::F16, wanted);
  for (const Parameter* parameter : trainer.state().parameters()) {
    if (parameter->name != "layers.1.bias") continue;
    EXPECT_EQ(copy_of(parameter->value), wanted);
  }
  EXPECT_EQ(trainer.state().parts().size(), 2U);
}

TEST(MasterValues, OfLayersThatKeepF32AreTheirValues) {
  Trainer trainer = trainer_of(model_in(DType::BF16, "mlp:64-8-8-10,norm"), plain_options(1, 2));
  for (const StateEntry& entry : trainer.state().entries(Rank{0}))
    EXPECT_EQ(static_cast<bool>(entry.master),
              entry.parameter->name.find("layers.1.") != 0 &&
                  entry.parameter->name.find("layers.3.") != 0)
        << entry.parameter->name;
}

TEST(LossScaleRule, IsThatOfGradScaler) {
  const LossScaleOptions options{.kind = LossScaleKind::Dynamic,
                                 .initial = 1024,
                                 .growth = 4,
                                 .backoff = 0.25,
                                 .interval = 3,
                                 .floor = 16,
                                 .ceiling = 8192};
  LossScale scale = first_scale(options);
  std::vector<double> values;
  for (const bool finite :
       {true,  true, true, true,  true, true, true, true,  true,  true,  true,
        false, true, true, false, true, true, true, false, false, false, false}) {
    scale = next_scale(scale, finite, options);
    values.push_back(scale.value);
  }
  EXPECT_THAT(values,
              testing::ElementsAre(1024,
                                   1024,
                                   4096,
                                   4096,
                                   4096,
                                   8192,
                                   8192,
                                   8192,
                                   8192,
                                   8192,
                                   8192,
                                   2048,
                                   2048,
                                   2048,
                                   512,
                                   512,
                                   512,
                                   2048,
                                   512,
                                   128,
                                   32,
                                   16));
  const LossScaleOptions fixed{.kind = LossScaleKind::Static, .initial = 3};
  EXPECT_EQ(next_scale(first_scale(fixed), false, fixed).value, 3);
  EXPECT_EQ(first_scale({}).value, 1);
}

TEST(LossScaleText, IsReadAndRefusedInASentence) {
  EXPECT_EQ(parse_loss_scale("none"), LossScaleOptions());
  EXPECT_EQ(parse_loss_scale("static:512"),
            (LossScaleOptions{.kind = LossScaleKind::Static, .initial = 512}));
  const auto dynamic = parse_loss_scale("dynamic:initial=4,interval=10,backoff=0.25");
  EXPECT_EQ(dynamic,
            (LossScaleOptions{
                .kind = LossScaleKind::Dynamic, .initial = 4, .backoff = 0.25, .interval = 10}));
  EXPECT_EQ(parse_loss_scale(to_string(dynamic)), dynamic);
  for (const char* wrong : {"",
                            "fixed",
                            "static",
                            "static:x",
                            "static:0",
                            "dynamic:",
                            "dynamic:speed=1",
                            "dynamic:interval=1.5",
                            "dynamic:backoff=1",
                            "dynamic:initial=0.5",
                            "dynamic:growth=0.5",
                            "none:1",
                            "static:inf",
                            "dynamic:ceiling=inf"})
    EXPECT_THROW((void)parse_loss_scale(wrong), InvalidArgument) << wrong;
}

TEST(LossScaling, PowerOfTwo_ChangesNoF32Bit) {
  const ModelSpec model = model_in(DType::F32);
  TestOptions options = job_options();
  const std::string expected = hash_after(model, options);
  options.step.loss_scale = parse_loss_scale("static:4096");
  EXPECT_EQ(hash_after(model, options), expected);
  options.step.loss_scale = parse_loss_scale("dynamic:interval=3,initial=64");
  EXPECT_EQ(hash_after(model, options), expected);
}

TEST(LossScaling, IsTakenOutBeforeAnybodyLooks) {
  const ModelSpec model = model_in(DType::F32);
  const auto seen = [&](const char* scale) {
    TestOptions options = job_options();
    options.step.loss_scale = parse_loss_scale(scale);
    options.fit.steps = 1;
    Trainer trainer(model, options.pipeline, options);
    std::vector<float> gradient;
    double norm = 0;
    trainer.before_update = [&](std::span<Parameter* const> parameters) {
      gradient = copy_of(parameters.front()->gradient);
    };
    trainer.on_step = [&](const StepReport& report) { norm = report.gradient_norm; };
    trainer.fit(first_digits(100));
    return std::tuple(gradient, norm, trainer.weights_hash());
  };
  EXPECT_EQ(seen("static:1024"), seen("none"));
}

TEST(LossScaling, Overflow_SkipsEverywhereAndHalves) {
  for (const char* executor : {"sequential", "ranks"}) {
    const ModelSpec model = model_in(DType::F16);
    TestOptions options = job_options();
    options.pipeline.shape.ranks = 3;
    options.run.executor = executor;
    options.step.loss_scale = parse_loss_scale("dynamic:initial=1e7,ceiling=1e7,interval=1000");
    options.fit.steps = 12;
    Trainer trainer(model, options.pipeline, options);
    std::vector<StepReport> steps;
    const std::string first = trainer.weights_hash();
    std::string after_first_skip;
    trainer.on_step = [&](const StepReport& report) {
      steps.push_back(report);
      if (steps.size() == 1) after_first_skip = trainer.weights_hash();
    };
    trainer.fit(first_digits(100));
    ASSERT_EQ(steps.size(), 12U);
    EXPECT_TRUE(steps.front().skipped);
    EXPECT_EQ(after_first_skip, first);
    EXPECT_FALSE(steps.back().skipped);
    double scale = 1e7;
    std::int64_t updates = 0;
    for (const StepReport& step : steps) {
      EXPECT_EQ(step.loss_scale, scale);
      EXPECT_EQ(step.global_step, updates += step.skipped ? 0 : 1);
      if (step.skipped) scale /= 2;
    }
    EXPECT_EQ(trainer.state().counters().loss_scale.value, scale);
    EXPECT_GT(trainer.state().counters().loss_scale.finite_in_a_row, 0);
  }
}

TEST(LossScaling, IsDynamicForF16AndNoneElse) {
  for (const auto& [precision, scale] :
       {std::pair{DType::F32, 1.0}, {DType::BF16, 1.0}, {DType::F16, 65536.0}})
    EXPECT_EQ(trainer_of(model_in(precision), job_options()).state().counters().loss_scale.value,
              scale);
}

/// Mean accuracy over five seeds.
double accuracy_in(DType precision) {
  const ModelSpec model = model_in(precision, "mlp:64-48-48-10");
  double sum = 0;
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const TrainTest data = load_data("digits", seed);
    TestOptions options = job_options();
    options.fit.batch_size = 64;
    options.fit.epochs = 20;
    options.step.seed = seed;
    Trainer trainer(model, options.pipeline, options);
    trainer.fit(data.train);
    sum += trainer.evaluate(data.test).accuracy();
  }
  return sum / 5;
}

TEST(Precisions, ReachTheAccuracyOfF32WithinHalfAPercent) {
  const double wide = accuracy_in(DType::F32);
  EXPECT_GT(wide, 0.95);
  EXPECT_GT(accuracy_in(DType::BF16), wide - 0.005);
  EXPECT_GT(accuracy_in(DType::F16), wide - 0.005);
}

}  // namespace
}  // namespace millrace::testing_training
