// verify_against_sequential: silent for every pipeline that accumulates in order, and exact about
// the first bit that a planted fault changes.
#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/stages/module.hpp"
#include "millrace/training/checks.hpp"
#include "tests/training/first_digits.hpp"

namespace millrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;
using testing_training::first_digits;
using testing_training::kModel;
using testing_training::plain_options;

SequentialComparison compared(const ModelSpec& model,
                              const Dataset& batch,
                              const TestOptions& options,
                              int steps = 3) {
  return verify_against_sequential(model, options.pipeline, batch, options, steps);
}

TestOptions options_for(const std::string& schedule, int ranks) {
  TestOptions options = plain_options(ranks, 4);
  options.pipeline.schedule = schedule;
  options.step.optimizer.kind = OptimizerKind::AdamW;
  options.step.optimizer.weight_decay = 0.1;
  options.step.learning_rate.base = 0.01;
  options.step.clip_norm = 0.5;
  return options;
}

TEST(VerifyAgainstSequential, AscendingSchedules_HaveSameBits) {
  const ModelSpec model = parse_model("mlp:64-20-16-16-16-10,norm,dropout=0.1");
  for (const char* executor : {"sequential", "ranks"})
    for (const char* schedule : {"gpipe", "1f1b", "zb-h1", "zb-v", "interleaved"}) {
      TestOptions options = options_for(schedule, 2);
      options.run.executor = executor;
      const SequentialComparison found = compared(model, first_digits(18), options);
      EXPECT_TRUE(found.same()) << schedule << ": " << to_string(found);
      EXPECT_EQ(to_string(found), "the same bits after 3 steps");
    }
}

TEST(VerifyAgainstSequential, FlowGraph_SameBits_flow_graph) {
  TestOptions options = options_for("1f1b", 3);
  options.run.executor = "flow-graph";
  EXPECT_TRUE(compared(parse_model(kModel), first_digits(18), options).same());
}

TEST(VerifyAgainstSequential, KnowsWhatElseDecidesBits) {
  const Dataset batch = first_digits(19);
  TestOptions options = options_for("1f1b", 3);
  options.step.parameters = {parse_parameter_group("layers.0.*:frozen"),
                             parse_parameter_group("layers.2.*:lr=0.5,weight-decay=0.3")};
  EXPECT_TRUE(compared(parse_model(kModel), batch, options).same());
  TestOptions passes = options_for("gpipe", 2);
  passes.step.accumulate = 2;
  passes.step.learning_rate.kind = LearningRateKind::Cosine;
  EXPECT_TRUE(compared(parse_model(kModel), batch, passes).same());
  for (const DType precision : {DType::F16, DType::BF16}) {
    ModelSpec model = parse_model(kModel);
    model.precision = precision;
    const SequentialComparison found = compared(model, batch, options_for("1f1b", 2));
    EXPECT_TRUE(found.same()) << to_string(found);
  }
}

/// Running statistics are values too.
TEST(VerifyAgainstSequential, KnowsBatchNormAndSkipEdges) {
  const SequentialComparison found = compared(
      parse_model("conv:8x8x1-8-8-10,norm=batch"), first_digits(18), options_for("1f1b", 3));
  EXPECT_TRUE(found.same()) << to_string(found);
}

/// A schedule whose backwards come in another order adds up gradients in another order.
TEST(VerifyAgainstSequential, FindsAnotherOrderOfAccumulation) {
  const Program program =
      generate("gpipe", {.ranks = 2, .micro_batches = 4, .order = BackwardOrder::Lifo});
  const MakeStages make = [] {
    std::vector<std::unique_ptr<StageBody>> bodies;
    const std::vector<int> boundaries = {0, 2, 3};
    for (auto& module : build_stages(parse_model(kModel), boundaries, 1))
      bodies.push_back(std::move(module));
    return bodies;
  };
  const SequentialComparison found =
      verify_against_sequential(program, make, first_digits(18), options_for("gpipe", 2));

  ASSERT_FALSE(found.same());
  EXPECT_EQ(found.first->step, 1);
  EXPECT_EQ(found.first->part, "gradient");
  EXPECT_NEAR(found.first->sequential, found.first->pipeline, 1e-5);
}

/// Wraps the first stage. When more than one unit was in flight, which the loop never has, element
/// 3 of the bias' gradient is one bit off, in the second step: behind its last micro-batch, so that
/// no sum rounds it away.
class OneBitOff final : public StageBody {
 public:
  explicit OneBitOff(std::unique_ptr<StageBody> body) : body_(std::move(body)) {}

  TensorList forward(const PassContext& context, TensorList inputs) override {
    crowded_ = ++in_flight_ > 1 || crowded_;
    return body_->forward(context, std::move(inputs));
  }

  TensorList backward_input(const PassContext& context, TensorList gradients) override {
    return body_->backward_input(context, std::move(gradients));
  }

  void backward_weight(const PassContext& context) override {
    body_->backward_weight(context);
    --in_flight_;
    if (crowded_ && context.step == 1 && context.micro_batch == MicroBatch{3}) {
      float& number = body_->parameters()[1]->gradient.as<float>()[3];
      number = std::nextafter(number, 1.0F);
    }
  }

  std::vector<Parameter*> parameters() override { return body_->parameters(); }
  void reserve(int micro_batches, int slices) override { body_->reserve(micro_batches, slices); }
  [[nodiscard]] std::size_t stashed_units() const override { return body_->stashed_units(); }
  void abandon_step() noexcept override { body_->abandon_step(); }

 private:
  std::unique_ptr<StageBody> body_;
  int in_flight_ = 0;
  bool crowded_ = false;
};

TEST(VerifyAgainstSequential, WrongBit_NamesTensorAndElement) {
  const MakeStages make = [] {
    std::vector<std::unique_ptr<StageBody>> bodies;
    const std::vector<int> boundaries = {0, 2, 3};
    for (auto& module : build_stages(parse_model(kModel), boundaries, 1))
      bodies.push_back(std::move(module));
    bodies[0] = std::make_unique<OneBitOff>(std::move(bodies[0]));
    return bodies;
  };
  const Program program = generate("gpipe", {.ranks = 2, .micro_batches = 4});
  const SequentialComparison found =
      verify_against_sequential(program, make, first_digits(18), options_for("gpipe", 2));

  ASSERT_FALSE(found.same());
  EXPECT_EQ(found.first->step, 2);
  EXPECT_EQ(found.first->tensor, "layers.0.bias");
  EXPECT_EQ(found.first->part, "gradient");
  EXPECT_EQ(found.first->index, 3);
  EXPECT_EQ(found.first->elements, 1);
  EXPECT_NE(found.first->sequential, found.first->pipeline);
  EXPECT_THAT(
      to_string(found),
      AllOf(HasSubstr("step 2: the gradient of 'layers.0.bias' differs first, at element 3"),
            HasSubstr("(1 of its elements differ)")));
}

TEST(VerifyAgainstSequential, RefusesWhatItDoesNotKnow) {
  TestOptions tied = options_for("1f1b", 2);
  tied.step.tied = {{"layers.0.weight", "layers.2.weight"}};
  EXPECT_THAT([&] { std::ignore = compared(parse_model(kModel), first_digits(8), tied); },
              ThrowsMessage<InvalidArgument>(HasSubstr("tied weights")));
  EXPECT_THAT(
      [&] {
        std::ignore = compared(parse_model(kModel), first_digits(8), options_for("1f1b", 2), 0);
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("at least 1 step, got 0")));
  const Program copies = generate("chimera", {.ranks = 2, .micro_batches = 2});
  EXPECT_THAT(
      [&] {
        std::ignore = verify_against_sequential(
            copies, [] { return std::vector<std::unique_ptr<StageBody>>(); }, first_digits(8));
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("every stage is hosted once")));
}

}  // namespace
}  // namespace millrace
