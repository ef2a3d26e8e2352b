// Parameters that are one weight: they start equal, move by the sum of their gradients, and have
// the same bits wherever the cut puts them.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/stages/models.hpp"
#include "millrace/training/trainer.hpp"
#include "support/test_options.hpp"

namespace millrace {
namespace {

const char* const kSquareModel = "mlp:64-16-16-16-16-10";  // three layers of 16 by 16

Dataset leading_digits(int n) {
  std::vector<std::int32_t> rows(static_cast<std::size_t>(n));
  std::iota(rows.begin(), rows.end(), 0);
  return select_rows(digits(), rows);
}

TestOptions options_of(int ranks) {
  TestOptions options;
  options.pipeline.shape.ranks = ranks;
  options.pipeline.shape.micro_batches = 4;
  options.run.executor = "sequential";
  options.step.optimizer.kind = OptimizerKind::Sgd;
  options.step.learning_rate.base = 0.5;
  options.fit.batch_size = 30;
  options.fit.epochs = 3;
  return options;
}

/// The 16 by 16 weights, in the order of the layers.
std::vector<std::string> square_weights() {
  std::vector<std::string> names;
  Trainer trainer = trainer_of(parse_model(kSquareModel), options_of(1));
  for (const Parameter* parameter : trainer.state().parameters())
    if (parameter->value.dims() == Dims{16, 16}) names.push_back(parameter->name);
  return names;
}

Parameter& named(Trainer& trainer, const std::string& name) {
  for (Parameter* parameter : trainer.state().parameters())
    if (parameter->name == name) return *parameter;
  throw Error("no parameter " + name);
}

std::vector<float> value_of(Trainer& trainer, const std::string& name) {
  const auto values = named(trainer, name).value.as<float>();
  return {values.begin(), values.end()};
}

TEST(TiedWeights, MoveByTheSumOfUntiedGradients) {
  const auto names = square_weights();
  ASSERT_EQ(names.size(), 3U);
  TestOptions options = options_of(3);
  Trainer untied(parse_model(kSquareModel), options.pipeline, options);
  options.step.tied = {{names[0], names[2]}};
  Trainer tied(parse_model(kSquareModel), options.pipeline, options);
  const std::vector<float> start = value_of(untied, names[0]);
  EXPECT_EQ(value_of(tied, names[0]), start);
  EXPECT_EQ(value_of(tied, names[2]), start);
  std::copy(start.begin(), start.end(), named(untied, names[2]).value.as<float>().begin());

  const Dataset data = leading_digits(30);
  Batch batch(data, 4);
  const StepReport apart = untied.step(batch);
  Batch again(data, 4);
  const StepReport together = tied.step(again);
  EXPECT_EQ(together.loss.sum, apart.loss.sum);

  const std::vector<float> first = value_of(untied, names[0]);
  const std::vector<float> second = value_of(untied, names[2]);
  const std::vector<float> sum = value_of(tied, names[0]);
  EXPECT_EQ(value_of(tied, names[2]), sum);
  double cross = 0;  // |a + b|^2 - |a|^2 - |b|^2 = 2 a b
  for (std::size_t i = 0; i < start.size(); ++i) {
    const double a = (static_cast<double>(start[i]) - static_cast<double>(first[i])) / 0.5;
    const double b = (static_cast<double>(start[i]) - static_cast<double>(second[i])) / 0.5;
    EXPECT_NEAR(sum[i], static_cast<double>(start[i]) - 0.5 * (a + b), 1e-7);
    cross += 2 * a * b;
  }
  ASSERT_GT(std::abs(cross), 1e-6);
  EXPECT_NEAR(together.gradient_norm * together.gradient_norm,
              apart.gradient_norm * apart.gradient_norm + cross,
              1e-5 * apart.gradient_norm * apart.gradient_norm);
}

TEST(TiedWeights, EverySplit_SameBits) {
  const auto names = square_weights();
  const Dataset data = leading_digits(100);
  std::string expected;
  const auto learn = [&](TestOptions options) {
    options.step.tied = {{names[0], names[1], names[2]}};
    options.step.clip_norm = 0.3;
    options.step.optimizer.kind = OptimizerKind::AdamW;
    options.step.learning_rate.base = 3e-3;
    Trainer trainer(parse_model(kSquareModel), options.pipeline, options);
    trainer.fit(data);
    EXPECT_EQ(value_of(trainer, names[0]), value_of(trainer, names[2]));
    if (expected.empty()) expected = trainer.weights_hash();
    EXPECT_EQ(trainer.weights_hash(), expected)
        << options.pipeline.shape.ranks << ' ' << options.pipeline.schedule << ' '
        << options.run.executor;
  };
  for (const int ranks : {1, 2, 3, 4}) learn(options_of(ranks));
  for (const char* executor : {"flow-graph", "ranks"})
    for (const char* schedule : {"gpipe", "zb-h1", "interleaved"}) {
      TestOptions options = options_of(2);
      options.run.executor = executor;
      options.pipeline.schedule = schedule;
      learn(options);
    }
}

TEST(TiedWeights, StayEqualInAllCopiesOfABidirectionalSchedule) {
  const auto names = square_weights();
  TestOptions options = options_of(2);
  options.pipeline.schedule = "chimera";
  options.step.tied = {{names[1], names[0]}};
  Trainer trainer(parse_model(kSquareModel), options.pipeline, options);
  trainer.fit(leading_digits(60));
  const std::vector<float> expected = value_of(trainer, names[0]);
  int copies = 0;
  for (const HostedStage& hosted : trainer.stages())
    for (const Parameter* parameter : hosted.body->parameters())
      if (parameter->name == names[0] || parameter->name == names[1]) {
        ++copies;
        const auto values = parameter->value.as<float>();
        EXPECT_TRUE(std::equal(values.begin(), values.end(), expected.begin()));
      }
  EXPECT_EQ(copies, 4);
}

TEST(TiedWeights, AreRefusedWhenTheyCannotBeOneWeight) {
  const auto names = square_weights();
  const auto refusal = [&](std::vector<std::vector<std::string>> groups) -> std::string {
    TestOptions options = options_of(2);
    options.step.tied = std::move(groups);
    try {
      Trainer trainer(parse_model(kSquareModel), options.pipeline, options);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal({{names[0]}}), "a tied group needs at least 2 parameters, got 1");
  EXPECT_EQ(refusal({{names[0], "layers.99.weight"}}),
            "tied parameter 'layers.99.weight' does not exist; the nearest is 'layers.0.weight'");
  EXPECT_EQ(refusal({{names[0], names[1]}, {names[1], names[2]}}),
            "parameter '" + names[1] + "' is tied twice");
  EXPECT_EQ(refusal({{names[0], "layers.0.weight"}}),
            "tied parameters must have one shape: '" + names[0] +
                "' has 16x16, 'layers.0.weight' has 64x16");
}

TEST(TiedWeights, UntiedProgram_IsRejected) {
  const auto names = square_weights();
  TestOptions options = options_of(1);
  const Program program = generate("1f1b", {.ranks = 1, .micro_batches = 4});
  const ModelSpec model = parse_model(kSquareModel);
  TrainerParts parts;
  parts.bodies.push_back(build_stage(model, {{0, model.layer_count()}}, 0, options.step.seed));
  parts.stages = {{Replica{0}, Stage{0}, parts.bodies.front().get()}};
  parts.executor = make_executor(ExecutorKind::Sequential, program, parts.stages);
  options.step.tied = {{names[0], names[1]}};
  parts.options = options;
  try {
    Trainer trainer(std::move(parts));
    ADD_FAILURE() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(std::string(error.what()),
              "the program of these parts does not tie '" + names[0] +
                  "'; declare it in Shape::ties, or let rank_parts make the parts");
  }
}

TEST(TiedWeights, PlansTies_NeedNoTrainerSetting) {
  const auto names = square_weights();
  TestOptions options = options_of(2);
  options.pipeline.boundaries = {2};
  Program program = generate("1f1b", {.ranks = 2, .micro_batches = 4});
  program.shape.ties = {{{{Stage{0}, names[0]}, {Stage{1}, names[2]}}}};
  Trainer of_plan(parse_model(kSquareModel), {program}, options);
  options.step.tied = {{names[0], names[2]}};
  Trainer of_options(parse_model(kSquareModel), options.pipeline, options);
  const Dataset data = leading_digits(60);
  of_plan.fit(data);
  of_options.fit(data);
  EXPECT_EQ(of_plan.weights_hash(), of_options.weights_hash());

  program.shape.ties.front().weights.back().name = "layers.99.weight";
  EXPECT_THROW(Trainer(parse_model(kSquareModel), {program}, options_of(2)), InvalidArgument);
}

}  // namespace
}  // namespace millrace
