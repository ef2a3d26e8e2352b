// When a pass throws: one StepError that names everything, nothing left over, and a next step
// that works. For every executor, every pass, every stage and every micro-batch.
#include <chrono>
#include <limits>
#include <stdexcept>

#include <gmock/gmock.h>

#include "run/executor_conformance.hpp"

namespace millrace::testing_run {

namespace {

using testing::HasSubstr;

class FailureTest : public ExecutorTest {};

INSTANTIATE_TEST_SUITE_P(All,
                         FailureTest,
                         testing::ValuesIn(executors_under_test()),
                         name_of_executor);

struct Boom : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// One pass of one unit through one stage.
struct Pass {
  Op op;
  Stage stage;
  Unit unit;
};

/// Throws in that pass.
Disturbance fail_in(Pass pass) {
  return [=](Op now, Stage where, const PassContext& context) {
    if (now == pass.op && where == pass.stage && context.micro_batch == pass.unit.micro_batch &&
        context.slice == pass.unit.slice)
      throw Boom("the floor gave way");
  };
}

/// The action of the program in which that pass happens: B where B does the work of I and W.
Action action_of(const Program& program, Pass pass) {
  for (const auto& list : program.ranks)
    for (const Action& action : list) {
      const bool does_it =
          action.op == pass.op || (action.op == Op::Backward && is_compute(pass.op) &&
                                   pass.op != Op::Forward && pass.op != Op::Recompute);
      if (does_it && action.stage == pass.stage && action.unit() == pass.unit) return action;
    }
  throw Error("no such action");
}

void expect_names_everything(const StepError& error, const Program& program, const Action& action) {
  const Rank rank = program.shape.rank(action.replica(), action.stage);
  EXPECT_EQ(error.action(), action) << to_string(error.action()) << ", not " << to_string(action);
  EXPECT_EQ(error.rank(), rank);
  EXPECT_EQ(
      error.what(),
      describe(action) + " failed on rank " + std::to_string(rank.value) + ": the floor gave way");
  EXPECT_THROW(std::rethrow_if_nested(error), Boom);
}

/// Fails one pass, and sees that a step before, this one and the one after are as they should be.
void expect_failure(ToyPipeline& pipeline,
                    Executor& executor,
                    const Program& program,
                    const Outcome& healthy,
                    Pass pass) {
  const Action action = action_of(program, pass);
  SCOPED_TRACE(to_string(action));
  pipeline.disturb(fail_in(pass));
  try {
    (void)pipeline.step(executor);
    ADD_FAILURE() << "no exception";
  } catch (const StepError& error) {
    expect_names_everything(error, program, action);
  }
  EXPECT_EQ(pipeline.stashed_units(), 0U);
  pipeline.disturb(nullptr);
  EXPECT_EQ(pipeline.step(executor), healthy) << "the step after the failure";
}

void fail_everywhere(const Program& program, ToyPipeline& pipeline, Executor& executor) {
  const auto start = std::chrono::steady_clock::now();
  const Outcome healthy = pipeline.step(executor);
  const Shape& shape = program.shape;
  for (const Op op : {Op::Forward, Op::BackwardInput, Op::BackwardWeight, Op::Recompute})
    for (int s = 0; s < shape.stages(); ++s)
      for (int i = 0; i < shape.micro_batches; ++i)
        for (int k = 0; k < shape.slices; ++k)
          expect_failure(
              pipeline, executor, program, healthy, {op, Stage{s}, {MicroBatch{i}, Slice{k}}});
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST_P(FailureTest, SplitBackward_IsNamedAndDropped) {
  const Program program = insert_recompute(generate("zb-h1", {.ranks = 3, .micro_batches = 4}));
  ToyPipeline pipeline(program.shape);
  fail_everywhere(program, pipeline, *make(program, pipeline));
}

TEST_P(FailureTest, FullBackward_IsNamedAndDropped) {
  const Program program =
      insert_recompute(generate("interleaved", {.ranks = 2, .micro_batches = 3}));
  ToyPipeline pipeline(program.shape);
  fail_everywhere(program, pipeline, *make(program, pipeline));
}

TEST_P(FailureTest, InAnySliceIsNamedAndForgotten) {
  const Program program =
      insert_recompute(generate("seq-1f1b", {.ranks = 2, .micro_batches = 2, .slices = 2}));
  ToyPipeline pipeline(program.shape);
  fail_everywhere(program, pipeline, *make(program, pipeline));
}

TEST_P(FailureTest, InACopyOfAStageIsNamedAndForgotten) {
  const Program program = insert_recompute(generate("chimera", {.ranks = 4, .micro_batches = 4}));
  ToyPipeline pipeline(program.shape);
  fail_everywhere(program, pipeline, *make(program, pipeline));
}

TEST_P(FailureTest, Optimizer_NamesTheLowestRank) {
  const Program program = generate("1f1b", {.ranks = 4, .micro_batches = 4});
  ToyPipeline pipeline(program.shape);
  const auto executor = make(program, pipeline);
  const Outcome healthy = pipeline.step(*executor);
  for (int failing = 0; failing < 4; ++failing) {
    std::atomic<int> ended = 0;
    try {
      executor->for_each_rank([&](Rank rank) {
        if (rank.value >= failing) throw Boom("no memory for moments");
        ++ended;
      });
      ADD_FAILURE() << "no exception";
    } catch (const StepError& error) {
      EXPECT_EQ(
          error.what(),
          "optimizer step failed on rank " + std::to_string(failing) + ": no memory for moments");
      EXPECT_EQ(error.rank(), Rank{failing});
      EXPECT_EQ(error.action().op, Op::OptimizerStep);
      EXPECT_THROW(std::rethrow_if_nested(error), Boom);
    }
    EXPECT_EQ(ended, failing);
    EXPECT_EQ(pipeline.step(*executor), healthy);
  }
}

TEST_P(FailureTest, DataFailure_FailsTheForwardPass) {
  class NoData final : public StepData {
   public:
    TensorList inputs(const Unit&) override { throw 42; }
    TensorList targets(const Unit&) override { return {}; }
    [[nodiscard]] std::int64_t first_sample(const Unit&) const override { return 0; }
  };
  const Program program = generate("1f1b", {.ranks = 2, .micro_batches = 2});
  ToyPipeline pipeline(program.shape);
  NoData data;

  try {
    (void)make(program, pipeline)->run(data, ToyPipeline::settings());
    ADD_FAILURE() << "no exception";
  } catch (const StepError& error) {
    EXPECT_STREQ(error.what(),
                 "forward of stage 0, micro-batch 0 failed on rank 0: an unknown exception");
  }
}

TEST_P(FailureTest, LeftStash_IsFoundAtStepEnd) {
  // Stage 1 forgets a release: its body still counts a stashed unit.
  class Hoarder final : public StageBody {
   public:
    TensorList forward(const PassContext&, TensorList) override {
      ++stashed_;
      return {};
    }
    TensorList backward_input(const PassContext&, TensorList) override { return {}; }
    void backward_weight(const PassContext& context) override {
      if (context.micro_batch.value != 1) --stashed_;
    }
    [[nodiscard]] std::size_t stashed_units() const override { return stashed_; }
    void abandon_step() noexcept override { stashed_ = 0; }

   private:
    std::size_t stashed_ = 0;
  };
  const Program program = generate("gpipe", {.ranks = 1, .micro_batches = 3});
  ToyPipeline pipeline(program.shape);
  Hoarder hoarder;
  const std::vector<HostedStage> hosted = {{Replica{0}, Stage{0}, &hoarder}};

  try {
    (void)GetParam().make(program, hosted)->run(pipeline.data, ToyPipeline::settings());
    ADD_FAILURE() << "no exception";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "after step 7 stage 0 still has a stash for 1 units");
  }
  EXPECT_EQ(hoarder.stashed_units(), 0U);
}

TEST(RankExecutor, MissingMessage_EndsAtTheDeadline) {
  const Program program = generate("1f1b", {.ranks = 2, .micro_batches = 2});
  ToyPipeline pipeline(program.shape);
  InProcessHub hub(2);
  const auto silent = hub.endpoint(Rank{0});
  const auto endpoint = hub.endpoint(Rank{1});
  const auto executor = make_rank_executor(program, pipeline.hosted, *endpoint);
  StepSettings settings = ToyPipeline::settings();
  settings.deadline = std::chrono::milliseconds(30);
  const auto start = std::chrono::steady_clock::now();

  try {
    (void)executor->run(pipeline.data, settings);
    ADD_FAILURE() << "no exception";
  } catch (const StepError& error) {
    EXPECT_THAT(
        error.what(),
        HasSubstr("receive of the activation of stage 1, micro-batch 0 failed on rank 1: "));
    EXPECT_THAT(error.what(), HasSubstr("did not arrive from rank 0 before the deadline"));
    EXPECT_THROW(std::rethrow_if_nested(error), TransportError);
  }
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(30));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(RankExecutor, AFailureElsewhereEndsTheWaitWithItsMessage) {
  const Program program = generate("1f1b", {.ranks = 2, .micro_batches = 2});
  ToyPipeline pipeline(program.shape);
  InProcessHub hub(2);
  const auto failing = hub.endpoint(Rank{0});
  const auto endpoint = hub.endpoint(Rank{1});
  const auto executor = make_rank_executor(program, pipeline.hosted, *endpoint);
  std::jthread other([&] { failing->cancel("forward of stage 0 failed on rank 0: fire"); });

  try {
    (void)executor->run(pipeline.data, ToyPipeline::settings());
    ADD_FAILURE() << "no exception";
  } catch (const Cancelled& cancelled) {
    EXPECT_STREQ(cancelled.what(), "forward of stage 0 failed on rank 0: fire");
  }
}

}  // namespace

}  // namespace millrace::testing_run
