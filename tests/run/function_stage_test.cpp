// A stage made of three functions trains like any other: whole numbers, so that every sum is exact
// and known beforehand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/stages/stage.hpp"
#include "run/executor_conformance.hpp"

namespace millrace::testing_run {

namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Parameter scalar(const std::string& name, float value) {
  Parameter parameter{
      .name = name, .value = Tensor(DType::F32, {1}), .gradient = Tensor(DType::F32, {1})};
  parameter.value.as<float>()[0] = value;
  parameter.gradient.fill_zero();
  return parameter;
}

Tensor scaled(const Tensor& tensor, float factor) {
  Tensor product = tensor.clone();
  for (float& value : product.as<float>()) value *= factor;
  return product;
}

float dot(const Tensor& a, const Tensor& b) {
  float sum = 0;
  for (std::size_t i = 0; i < a.as<float>().size(); ++i) sum += a.as<float>()[i] * b.as<float>()[i];
  return sum;
}

/// y = w x; of the last stage the loss is the sum of y, whose gradient is 1. `kept` is x, and
/// between I and W also the gradient of y.
std::unique_ptr<StageBody> multiply(Parameter& weight, bool splits) {
  StageFunctions functions;
  functions.forward = [&weight](const PassContext& context, TensorList inputs, TensorList& kept) {
    Tensor y = scaled(inputs[0], weight.value.as<float>()[0]);
    kept.push_back(std::move(inputs[0]));
    if (context.loss == nullptr) return TensorList(std::move(y));
    for (const float value : y.as<float>()) context.loss->sum += value;
    context.loss->weight += static_cast<double>(y.rows());
    return context.training ? TensorList() : TensorList(std::move(y));
  };
  const auto add_weight_gradient = [&weight](const PassContext&, TensorList& kept) {
    weight.gradient.as<float>()[0] += dot(kept[0], kept[1]);
  };
  functions.backward_input = [&weight, splits, add_weight_gradient](const PassContext& context,
                                                                    TensorList gradients,
                                                                    TensorList& kept) {
    Tensor gradient = context.loss == nullptr ? std::move(gradients[0]) : kept[0].clone();
    if (context.loss != nullptr) std::ranges::fill(gradient.as<float>(), 1.0F);
    TensorList given(scaled(gradient, weight.value.as<float>()[0]));
    kept.push_back(std::move(gradient));
    if (!splits) add_weight_gradient(context, kept);
    return given;
  };
  if (splits) functions.backward_weight = add_weight_gradient;
  return make_stage(std::move(functions), {&weight});
}

/// Two numbers a unit: 1 and 2, 3 and 4, ...
class Numbers final : public StepData {
 public:
  explicit Numbers(int slices) : slices_(slices) {}

  TensorList inputs(const Unit& unit) override {
    const int number = unit.micro_batch.value * slices_ + unit.slice.value;
    Tensor x(DType::F32, {2});
    x.as<float>()[0] = static_cast<float>(2 * number + 1);
    x.as<float>()[1] = static_cast<float>(2 * number + 2);
    return TensorList(std::move(x));
  }
  TensorList targets(const Unit&) override { return {}; }
  [[nodiscard]] std::int64_t first_sample(const Unit& unit) const override {
    return 2 * unit.micro_batch.value;
  }

 private:
  int slices_;
};

/// 1 + 2 + ... over all units of the program.
float sum_of_inputs(const Shape& shape) {
  const int n = 2 * shape.micro_batches * shape.slices;
  return static_cast<float>(n * (n + 1)) / 2;
}

class FunctionStageTest : public testing::TestWithParam<ExecutorUnderTest> {
 protected:
  /// One step of y = w2 w1 w0 x; gives the result and leaves the gradients.
  StepResult step(const Program& program, bool splits) {
    weights.clear();
    for (const float value : {2.0F, 3.0F, 5.0F}) weights.push_back(scalar("w", value));
    bodies.clear();
    std::vector<HostedStage> hosted;
    for (int s = 0; s < 3; ++s) {
      bodies.push_back(multiply(weights[static_cast<std::size_t>(s)], splits));
      hosted.push_back({Replica{0}, Stage{s}, bodies.back().get()});
    }
    Numbers data(program.shape.slices);
    StepSettings settings = ToyPipeline::settings();
    settings.training = !program.shape.forward_only;
    warnings = plan_warnings(program, hosted);
    return GetParam().make(program, hosted)->run(data, settings);
  }

  [[nodiscard]] std::vector<float> gradients() const {
    std::vector<float> all;
    for (const Parameter& weight : weights) all.push_back(weight.gradient.as<float>()[0]);
    return all;
  }

  std::vector<Parameter> weights;
  std::vector<std::unique_ptr<StageBody>> bodies;
  std::vector<std::string> warnings;
};

INSTANTIATE_TEST_SUITE_P(All,
                         FunctionStageTest,
                         testing::ValuesIn(executors_under_test()),
                         name_of_executor);

TEST_P(FunctionStageTest, EverySchedule_HasFormulaGradients) {
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1", "seq-1f1b"})
    for (const bool recompute : {false, true})
      for (const bool splits : {true, false}) {
        const bool sliced = std::string(schedule) == "seq-1f1b";
        ScheduleOptions options{.ranks = 3, .micro_batches = 4};
        if (sliced) options.slices = 2;
        Program program = generate(schedule, options);
        if (recompute) program = insert_recompute(program);
        const StepResult result = step(program, splits);

        const float x = sum_of_inputs(program.shape);
        EXPECT_THAT(gradients(), ElementsAre(15 * x, 10 * x, 6 * x))
            << schedule << " recompute " << recompute << " splits " << splits;
        EXPECT_EQ(result.loss.sum, 30 * x);
        EXPECT_EQ(result.samples, 8);
      }
}

TEST_P(FunctionStageTest, NoWeightFunction_WarnsIfSplit) {
  (void)step(generate("zb-h1", {.ranks = 3, .micro_batches = 4}), false);
  ASSERT_EQ(warnings.size(), 3U);
  EXPECT_THAT(warnings[1], HasSubstr("splits the backward of stage 1, which cannot be split"));
  (void)step(generate("1f1b", {.ranks = 3, .micro_batches = 4}), false);
  EXPECT_THAT(warnings, IsEmpty());
  (void)step(generate("zb-h1", {.ranks = 3, .micro_batches = 4}), true);
  EXPECT_THAT(warnings, IsEmpty());
}

TEST_P(FunctionStageTest, CountsWhatItKeeps) {
  // gpipe keeps x of all four micro-batches, 8 bytes each; the first B has its gradient too.
  const StepResult result = step(generate("gpipe", {.ranks = 3, .micro_batches = 4}), true);
  EXPECT_THAT(result.peak_stash_bytes, ElementsAre(40U, 40U, 40U));
}

TEST_P(FunctionStageTest, KeepsNothingInEvaluation) {
  const Program program = forward_only(generate("gpipe", {.ranks = 3, .micro_batches = 4}));
  const StepResult result = step(program, true);
  ASSERT_EQ(result.outputs.size(), 4U);
  EXPECT_THAT(result.outputs[2][0].as<float>(), ElementsAre(150, 180));
  for (const auto& body : bodies) EXPECT_EQ(body->stashed_units(), 0U);
}

/// Has one backward, and fails when it is asked for halves.
class Whole final : public StageBody {
 public:
  TensorList forward(const PassContext& context, TensorList inputs) override {
    return context.loss == nullptr ? std::move(inputs) : TensorList();
  }
  TensorList backward(const PassContext&, TensorList) override {
    ++backwards;
    return TensorList(Tensor(DType::F32, {2}));
  }
  TensorList backward_input(const PassContext&, TensorList) override { throw Error("half"); }
  void backward_weight(const PassContext&) override { throw Error("half"); }
  [[nodiscard]] bool splits_backward() const override { return false; }

  int backwards = 0;
};

TEST_P(FunctionStageTest, UnsplitStage_RunsBackwardInI) {
  std::vector<Whole> whole(3);
  std::vector<HostedStage> hosted;
  for (int s = 0; s < 3; ++s)
    hosted.push_back({Replica{0}, Stage{s}, &whole[static_cast<std::size_t>(s)]});
  Numbers data(1);
  (void)GetParam()
      .make(generate("zb-h2", {.ranks = 3, .micro_batches = 6}), hosted)
      ->run(data, ToyPipeline::settings());
  for (const Whole& stage : whole) EXPECT_EQ(stage.backwards, 6);
}

TEST(FunctionStage, InvalidStage_IsRejected) {
  EXPECT_THROW((void)make_stage({}), InvalidArgument);
  Parameter weight = scalar("w", 2);
  const auto stage = multiply(weight, true);
  PassContext context;
  EXPECT_THROW((void)stage->backward_input(context, {}), InvalidArgument);
  context.micro_batch = MicroBatch{1};
  EXPECT_THROW((void)stage->forward(context, TensorList(Tensor(DType::F32, {2}))), InvalidArgument);
}

}  // namespace

}  // namespace millrace::testing_run
