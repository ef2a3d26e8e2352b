// Gradients in the order of a tree of sums: for every schedule the bits of its definition, made of
// what each micro-batch adds by itself.
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "millrace/scheduler/plan/verify.hpp"
#include "run/executor_conformance.hpp"

namespace millrace::testing_run {

namespace {

using testing::HasSubstr;
class GradientTreeTest : public ExecutorTest {};

INSTANTIATE_TEST_SUITE_P(All,
                         GradientTreeTest,
                         testing::ValuesIn(executors_under_test()),
                         name_of_executor);

using Gradients = std::vector<std::vector<float>>;  // by stage

Gradients tree_of(const std::vector<Gradients>& leaves, std::size_t first, std::size_t last) {
  if (last - first == 1) return leaves[first];
  const std::size_t middle = first + (last - first + 1) / 2;
  Gradients sum = tree_of(leaves, first, middle);
  const Gradients rest = tree_of(leaves, middle, last);
  for (std::size_t stage = 0; stage < sum.size(); ++stage)
    for (std::size_t i = 0; i < sum[stage].size(); ++i) sum[stage][i] += rest[stage][i];
  return sum;
}

StepSettings tree_settings() {
  StepSettings settings = ToyPipeline::settings();
  settings.order = AccumulateOrder::Tree;
  return settings;
}

/// Slices of a micro-batch add up in the order of their passes.
bool slices_descend(const Program& program) {
  return program.shape.slices == 1 || accumulation(program).ascending;
}

TEST_P(GradientTreeTest, EverySchedule_AddsInTreeOrder) {
  int differs = 0;
  for_each_schedule([&](const Program& program) {
    if (program.shape.replicas() > 1 || !slices_descend(program)) return;
    ToyPipeline pipeline(program.shape);
    const auto leaves = pipeline.plain_leaves();
    const auto expected = tree_of(leaves, 0, leaves.size());
    differs += expected == pipeline.plain_loop().gradients ? 0 : 1;
    const auto executor = make(program, pipeline);
    for (int step = 0; step < 2; ++step) {
      pipeline.data.rewind();
      pipeline.zero_gradients();
      executor->run(pipeline.data, tree_settings());
      Gradients got;
      for (int stage = 0; stage < program.shape.stages(); ++stage)
        got.push_back(pipeline.gradient(0, stage));
      EXPECT_EQ(got, expected);
    }
  });
  EXPECT_GT(differs, 20);  // or the numbers prove nothing
}

/// Bytes of the one parameter of every stage of a toy pipeline.
std::vector<std::size_t> gradient_bytes_of(const ToyPipeline& pipeline) {
  std::vector<std::size_t> bytes;
  for (const HostedStage& hosted : pipeline.hosted) {
    bytes.push_back(0);
    for (const Parameter* parameter : hosted.body->parameters())
      bytes.back() += parameter->gradient.bytes();
  }
  return bytes;
}

TEST_P(GradientTreeTest, HoldsPlannedPartialSums) {
  std::size_t largest = 0;
  for_each_schedule([&](const Program& program) {
    if (program.shape.replicas() > 1 || program.shape.forward_only) return;
    ToyPipeline pipeline(program.shape);
    const auto executor = make(program, pipeline);
    for (const int passes : {1, 3}) {
      const PartialSumCount predicted = partial_sums(program, gradient_bytes_of(pipeline), passes);
      StepSettings settings = tree_settings();
      settings.passes = passes;
      StepResult last;
      for (settings.pass = 0; settings.pass < passes; ++settings.pass) {
        pipeline.data.rewind();
        last = executor->run(pipeline.data, settings);
      }
      EXPECT_EQ(last.peak_sum_bytes, predicted.rank_bytes) << passes;
      for (const int sums : predicted.of_stage)
        largest = std::max(largest, static_cast<std::size_t>(sums));
    }
  });
  EXPECT_GT(largest, 4U);
  const Program ascending = generate("1f1b", {.ranks = 2, .micro_batches = 4});
  ToyPipeline pipeline(ascending.shape);
  pipeline.data.rewind();
  const StepResult without = make(ascending, pipeline)->run(pipeline.data, ToyPipeline::settings());
  EXPECT_THAT(without.peak_sum_bytes, testing::IsEmpty());
}

TEST_P(GradientTreeTest, ForgetsTheTreeOfAStepThatFailed) {
  const Program program = generate("zb-h1", {.ranks = 2, .micro_batches = 4});
  ToyPipeline pipeline(program.shape);
  const auto leaves = pipeline.plain_leaves();
  const auto executor = make(program, pipeline);
  pipeline.disturb([](Op op, Stage stage, const PassContext& context) {
    if (op == Op::BackwardWeight && stage == Stage{0} && context.micro_batch.value == 2)
      throw Error("no more");
  });
  pipeline.data.rewind();
  EXPECT_THROW(executor->run(pipeline.data, tree_settings()), StepError);
  pipeline.disturb({});
  pipeline.data.rewind();
  pipeline.zero_gradients();
  executor->run(pipeline.data, tree_settings());
  const auto expected = tree_of(leaves, 0, leaves.size());
  EXPECT_EQ(pipeline.gradient(0, 0), expected[0]);
  EXPECT_EQ(pipeline.gradient(0, 1), expected[1]);
}

TEST_P(GradientTreeTest, RefusesATreeOverCopiesOfStages) {
  const Program program = generate("chimera", {.ranks = 2, .micro_batches = 4});
  ToyPipeline pipeline(program.shape);
  const auto executor = make(program, pipeline);
  try {
    executor->run(pipeline.data, tree_settings());
    ADD_FAILURE() << "not refused";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("one copy of each stage; 'chimera p=2 m=4' has 2"));
  }
}

}  // namespace

}  // namespace millrace::testing_run
