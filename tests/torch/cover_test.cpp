// Models of PyTorch's layers have the bits of plain autograd whatever the schedule, its ranks, the
// executor, recompute, split and precision: a cover of all pairs of such choices, whose part
// between processes is in processes_test.cpp. `./run soak` takes every case.
#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/verify.hpp"
#include "millrace/scheduler/run/executor.hpp"
#include "torch/matrix_runs.hpp"

namespace millrace::testing_torch {
namespace {

class TorchCover : public testing::TestWithParam<std::string> {};

TEST_P(TorchCover, HasTheBitsOfPlainAutograd) {
  const std::vector<test::Choice> choices = torch_choices_of(GetParam());
  for (const test::Choice& choice : choices) {
    SCOPED_TRACE(torch_matrix().text(choice));
    const TorchCase of = torch_case_of(choice);
    EXPECT_THAT(differences(run(of), wanted(of)), testing::IsEmpty());
  }
  EXPECT_GE(choices.size(), schedules_that_train().size());
}

INSTANTIATE_TEST_SUITE_P(Places,
                         TorchCover,
                         testing::Values("sequential", "flow-graph", "ranks"),
                         [](const auto& tested) -> std::string {
                           if (tested.param == "flow-graph") return "FlowGraph";
                           return tested.param == "ranks" ? "Ranks" : "Sequential";
                         });

TEST(TorchMatrix, IsCoveredInEveryPairThatHasAMeaning) {
  const test::Matrix& matrix = torch_matrix();
  // Two schedules in both directions on 1 and on 3 ranks, and of the residual network; 1 rank over
  // two kinds of sockets.
  EXPECT_EQ(matrix.impossible().size(), 2U * 2 + 2 + 2);
  EXPECT_EQ(matrix.covered_by(matrix.pairwise(1)), matrix.pairs() - matrix.impossible().size());
}

TEST(TorchMatrix, CountsWhatIsLeftOut) {
  const std::map<std::string, std::size_t> excluded = {
      {"a pipeline in both directions has an even number of ranks", 480},
      {"running means of copies would not see all micro-batches", 240},
      {"one process sends nobody anything", 1'248}};
  EXPECT_EQ(torch_matrix().excluded(), excluded);
  EXPECT_EQ(torch_matrix().cases(), 11'472U);
  EXPECT_EQ(torch_matrix().all().size(), torch_matrix().cases());
}

TEST(TorchMatrix, KnowsSchedulesWithCustomOrder) {
  for (const std::string& schedule : schedules_that_train()) {
    const Program program = program_of({.schedule = schedule, .ranks = 4});
    EXPECT_EQ(accumulation(program).ascending, !has_own_order(schedule)) << schedule;
    EXPECT_EQ(program.shape.replicas() > 1, has_copies(schedule)) << schedule;
  }
}

/// Else the cover would not see in which order gradients are added.
TEST(TorchMatrix, AnOrderOfItsOwnHasOtherBits) {
  for (const std::string& schedule : schedules_that_train())
    if (has_own_order(schedule)) {
      const Bits& own = wanted({.schedule = schedule, .ranks = 4});
      EXPECT_THAT(differences(own, wanted({})), testing::Not(testing::IsEmpty())) << schedule;
    }
}

TEST(TorchMatrix, OmitsRunningMeansOfReplicas) {
  EXPECT_THAT([] { (void)run({.model = "resnet", .schedule = "chimera", .ranks = 2}); },
              testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("running_mean")));
}

/// The only schedule without a backward.
TEST(TorchMatrix, TheForwardScheduleGivesThePlainLoss) {
  TorchTask plain = task_of("resnet");
  plain.model->eval();
  double sum = 0;
  for (std::size_t i = 0; i < plain.inputs.size(); ++i) {
    const torch::NoGradGuard without;
    const auto outputs = plain.model->forward(plain.inputs[i][0]);
    sum += plain.loss({outputs}, plain.targets[i]).sum.item<double>();
  }
  for (const ExecutorKind executor : executor_kinds()) {
    const Program program = generate("forward", {.ranks = 4, .micro_batches = kMatrixMicroBatches});
    const TorchTask task = task_of("resnet");
    const auto bodies = torch_pipeline(task.model, task.loss, program.shape.stages());
    std::vector<HostedStage> stages;
    for (std::size_t i = 0; i < bodies.size(); ++i)
      stages.push_back({Replica{0}, Stage{static_cast<int>(i)}, bodies[i].get()});
    TorchUnits data = task.units();
    const StepResult result =
        make_executor(executor, program, stages)->run(data, {.training = false});
    EXPECT_EQ(result.loss.sum, sum) << name_of(executor);
  }
}

}  // namespace
}  // namespace millrace::testing_torch
