// What every executor computes, for every schedule: the bits of the plain loop.
#include <cmath>
#include <mutex>
#include <set>

#include <gmock/gmock.h>

#include "millrace/scheduler/plan/graph.hpp"
#include "millrace/scheduler/plan/verify.hpp"
#include "run/executor_conformance.hpp"

namespace millrace::testing_run {

namespace {

using testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(All,
                         ExecutorTest,
                         testing::ValuesIn(executors_under_test()),
                         name_of_executor);

/// Sums of the same terms in another order: equal up to rounding of the largest partial sum.
void expect_close(const Outcome& got, const Outcome& expected) {
  for (std::size_t stage = 0; stage < got.gradients.size(); ++stage) {
    const auto& plain = expected.gradients[stage % expected.gradients.size()];
    float largest = 0;
    for (const float value : plain) largest = std::max(largest, std::abs(value));
    for (std::size_t i = 0; i < plain.size(); ++i)
      EXPECT_NEAR(got.gradients[stage][i], plain[i], 1e-6 * (1 + largest));
  }
}

/// Gradients of a plain loop over one copy of the model: what all copies together must give.
Outcome plain(const Shape& shape) {
  Shape one = shape;
  one.placement = Placement::straight(shape.stages());
  one.replica_of.clear();
  return ToyPipeline(one).plain_loop();
}

void expect_outcome(const Program& program, const Outcome& got) {
  const Outcome expected = plain(program.shape);
  EXPECT_EQ(got.losses, expected.losses);
  EXPECT_EQ(got.loss, expected.loss);
  if (accumulation(program).ascending && program.shape.replicas() == 1) {
    EXPECT_EQ(got.gradients, expected.gradients);
  } else {
    expect_close(got, expected);
  }
  for (int i = 1; i < program.shape.replicas(); ++i)
    for (std::size_t s = 0, stages = static_cast<std::size_t>(program.shape.stages()); s < stages;
         ++s)
      EXPECT_EQ(got.gradients[s + static_cast<std::size_t>(i) * stages], got.gradients[s])
          << "copy " << i << " of stage " << s;
}

TEST_P(ExecutorTest, GivesThePlainLoopsBitsForEverySchedule) {
  for_each_schedule([](const Program& program) {
    ToyPipeline pipeline(program.shape);
    const auto executor = make(program, pipeline);

    const Outcome first = pipeline.step(*executor);

    expect_outcome(program, first);
    EXPECT_EQ(pipeline.step(*executor), first) << "the second step differs";
    EXPECT_EQ(pipeline.stashed_units(), 0U);
  });
}

TEST_P(ExecutorTest, AnyAccumulationOrder_SequentialBits) {
  for_each_schedule([](const Program& program) {
    ToyPipeline reference(program.shape);
    ToyPipeline pipeline(program.shape);

    const auto executor = make(program, pipeline);

    EXPECT_EQ(pipeline.step(*executor),
              reference.step(*make_executor(ExecutorKind::Sequential, program, reference.hosted)));
  });
}

TEST_P(ExecutorTest, RecomputeAndSplitBackwardKeepTheBits) {
  for_each_schedule([](const Program& program) {
    ToyPipeline pipeline(program.shape);
    const Outcome kept = pipeline.step(*make(program, pipeline));

    EXPECT_EQ(pipeline.step(*make(insert_recompute(program), pipeline)), kept);
    EXPECT_EQ(pipeline.step(*make(split_backward(program), pipeline)), kept);
  });
}

TEST_P(ExecutorTest, RandomDelaysChangeNothing) {
  for_each_schedule([](const Program& program) {
    ToyPipeline pipeline(program.shape);
    const auto executor = make(program, pipeline);
    const Outcome undisturbed = pipeline.step(*executor);
    for (std::uint64_t seed = 1; seed <= 2; ++seed) {
      pipeline.disturb([seed](Op op, Stage stage, const PassContext& context) {
        const RandomKey key{.seed = seed,
                            .sample = static_cast<std::uint32_t>(context.micro_batch.value),
                            .layer = static_cast<std::uint32_t>(stage.value)};
        const auto spin =
            std::chrono::microseconds(random_below(key, static_cast<std::uint32_t>(op), 30));
        const auto end = std::chrono::steady_clock::now() + spin;
        while (std::chrono::steady_clock::now() < end) continue;
      });
      EXPECT_EQ(pipeline.step(*executor), undisturbed) << "seed " << seed;
    }
  });
}

TEST_P(ExecutorTest, EvaluatesAForwardOnlyProgram) {
  for_each_schedule([](const Program& training) {
    if (training.shape.slices > 1) return;  // the toy stage carries state in training only
    const Program program = forward_only(training);
    ToyPipeline pipeline(program.shape);
    StepSettings settings = ToyPipeline::settings();
    settings.training = false;

    const StepResult result = make(program, pipeline)->run(pipeline.data, settings);

    EXPECT_EQ(result.loss.sum, plain(training.shape).loss);
    ASSERT_EQ(result.outputs.size(), static_cast<std::size_t>(program.shape.micro_batches));
    for (std::size_t unit = 0; unit < result.outputs.size(); ++unit) {
      ASSERT_EQ(result.outputs[unit].size(), 1U);
      EXPECT_EQ(result.outputs[unit][0].rows(), unit % 2 == 0 ? 2 : 3);
    }
    EXPECT_EQ(result.peak_stash_bytes,
              std::vector<std::size_t>(static_cast<std::size_t>(program.shape.ranks), 0));
    EXPECT_EQ(pipeline.stashed_units(), 0U);
  });
}

TEST_P(ExecutorTest, PredictionsOutliveTheExecutor) {
  const Program program = forward_only(generate("1f1b", {.ranks = 2, .micro_batches = 2}));
  ToyPipeline pipeline(program.shape);
  StepSettings settings = ToyPipeline::settings();
  settings.training = false;

  const TensorList output =
      std::move(make(program, pipeline)->run(pipeline.data, settings).outputs[1]);

  for (const float value : output[0].as<float>()) EXPECT_TRUE(std::isfinite(value));
}

TEST_P(ExecutorTest, CountsThePeakOfEveryRanksStash) {
  // 1F1B on 3 ranks holds min(3 - r, m) micro-batches. A unit of n rows keeps x and h of 12 n bytes
  // each after F; the last rank also gy, the others add gy inside B. Micro-batches have 2, 3, 2, 3
  // rows.
  const Program program = generate("1f1b", {.ranks = 3, .micro_batches = 4});
  ToyPipeline pipeline(program.shape);

  const StepResult result = make(program, pipeline)->run(pipeline.data, ToyPipeline::settings());

  EXPECT_EQ(
      result.peak_stash_bytes,
      (std::vector<std::size_t>{12 * (2 * (3 + 2 + 3) + 3), 12 * (2 * (2 + 3) + 3), 12 * 3 * 3}));
}

TEST_P(ExecutorTest, RecordsATimelineThatKeepsProgramOrderAndDependencies) {
  const Program program = generate("interleaved", {.ranks = 2, .micro_batches = 4});
  ToyPipeline pipeline(program.shape);
  const auto executor = make(program, pipeline);

  (void)pipeline.step(*executor);

  const Program& executed = executor->program();
  const Timeline& timeline = executor->timeline();
  const Graph graph(executed);
  for (std::size_t r = 0; r < executed.ranks.size(); ++r) {
    ASSERT_EQ(timeline.ranks[r].size(), executed.ranks[r].size());
    for (std::size_t i = 0; i < executed.ranks[r].size(); ++i) {
      EXPECT_LE(timeline.ranks[r][i].start, timeline.ranks[r][i].end);
      if (i > 0) {
        EXPECT_LE(timeline.ranks[r][i - 1].end, timeline.ranks[r][i].start);
      }
      // Rank executors are as separate as processes: each has a clock of its own.
      if (GetParam().name == "RankExecutors") continue;
      const Node node = graph.first(Rank{static_cast<int>(r)}) + static_cast<Node>(i);
      for (const Node producer : graph.producers(node)) {
        const Interval& earlier =
            timeline.ranks[graph.rank(producer).index()][graph.position(producer)];
        EXPECT_LE(is_receive(executed.ranks[r][i].op) ? earlier.start : earlier.end,
                  timeline.ranks[r][i].end);
      }
    }
  }
}

TEST_P(ExecutorTest, AsksForEachUnitOnce) {
  const Program program = generate("gpipe", {.ranks = 2, .micro_batches = 5});
  ToyPipeline pipeline(program.shape);
  std::mutex mutex;
  std::set<std::pair<int, std::int64_t>> seen;
  pipeline.disturb([&](Op, Stage, const PassContext& context) {
    const std::lock_guard lock(mutex);
    seen.insert({context.micro_batch.value, context.first_sample});
    EXPECT_EQ(context.step, 7U);
  });

  (void)pipeline.step(*make(program, pipeline));  // ToyData throws when asked twice

  EXPECT_EQ(seen,
            (std::set<std::pair<int, std::int64_t>>{{0, 0}, {1, 2}, {2, 5}, {3, 7}, {4, 10}}));
}

TEST_P(ExecutorTest, RunsRankWorkOncePerRank) {
  const Program program = generate("1f1b", {.ranks = 4, .micro_batches = 4});
  ToyPipeline pipeline(program.shape);
  std::vector<std::atomic<int>> calls(4);

  make(program, pipeline)->for_each_rank([&](Rank rank) { ++calls[rank.index()]; });

  for (const auto& count : calls) EXPECT_EQ(count, 1);
}

TEST_P(ExecutorTest, RefusesProgramsAndBodiesThatDoNotFit) {
  const auto message = [](const auto& call) {
    try {
      call();
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("no InvalidArgument");
  };
  const Program program = generate("1f1b", {.ranks = 2, .micro_batches = 2});
  ToyPipeline pipeline(program.shape);

  Program without_backward = program;
  without_backward.ranks[0].pop_back();
  EXPECT_THAT(message([&] { make(without_backward, pipeline); }), HasSubstr("cannot be executed"));

  std::vector<HostedStage> one = {pipeline.hosted[0]};
  EXPECT_THAT(message([&] { GetParam().make(program, one); }),
              HasSubstr("stage 1 of replica 0 runs on rank 1 but was given no body"));

  StepSettings evaluation = ToyPipeline::settings();
  evaluation.training = false;
  EXPECT_THAT(message([&] { make(program, pipeline)->run(pipeline.data, evaluation); }),
              HasSubstr("evaluation needs a forward-only program"));
}

TEST_P(ExecutorTest, SaysWhenItsStepStarted) {
  const Program program = generate("1f1b", {.ranks = 2, .micro_batches = 2});
  ToyPipeline pipeline(program.shape);
  const auto executor = make(program, pipeline);
  const auto before = std::chrono::steady_clock::now();

  pipeline.step(*executor);

  EXPECT_GE(executor->started(), before);
}

TEST(Executors, AreFoundByNameOrTheNearestIsNamed) {
  for (const ExecutorKind kind : executor_kinds()) EXPECT_EQ(executor_kind(name_of(kind)), kind);

  try {
    (void)executor_kind("flowgraph");
    ADD_FAILURE() << "no exception";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "unknown executor 'flowgraph'; known are flow-graph, ranks, sequential; did you "
                 "mean flow-graph?");
  }
}

}  // namespace

}  // namespace millrace::testing_run
