// Two programs that use the library as ranks of one training, and were built for different things:
// each hears at once what differs.
#include <array>
#include <functional>
#include <optional>
#include <stop_token>
#include <thread>

#include <gmock/gmock.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/training/ranks.hpp"
#include "millrace/transport/in_process.hpp"
#include "millrace/transport/process_group.hpp"

namespace millrace {
namespace {

using testing::HasSubstr;

/// What one rank's program says.
struct Job {
  std::string schedule = "1f1b";
  int micro_batches = 4;
  std::vector<int> boundaries = {};
  TrainerOptions options = {.step = {.learning_rate = {.base = 0.1}},
                            .fit = {.batch_size = 20, .epochs = 1}};
  Dataset data;
  std::int64_t evaluated_at_once = 0;
};

Dataset digits_from(std::int32_t first, int count) {
  std::vector<std::int32_t> rows;
  for (int i = 0; i < count; ++i) rows.push_back(first + i);
  return select_rows(digits(), rows);
}

Job usual_job() {
  Job job;
  job.data = digits_from(0, 40);
  return job;
}

void train(const Job& job, Endpoint& endpoint) {
  ProcessGroup group(endpoint);
  const Program program = generate(job.schedule, {.ranks = 2, .micro_batches = job.micro_batches});
  Trainer trainer(rank_parts(
      parse_model("mlp:64-8-10"), {program, job.boundaries}, job.options, endpoint, group));
  trainer.fit(job.data);
  (void)trainer.evaluate(job.data, job.evaluated_at_once);
}

/// What the two ranks throw as a Mismatch when `change` is made to the second one's job.
std::vector<std::string> complaints(const std::function<void(Job&)>& change) {
  InProcessHub hub(2);
  std::vector<std::string> said(2);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank, endpoint = hub.endpoint(Rank{rank})] {
      Job job = usual_job();
      if (rank == 1) change(job);
      try {
        train(job, *endpoint);
        endpoint->leave(std::chrono::steady_clock::now() + std::chrono::seconds(30));
      } catch (const Mismatch& error) {
        said[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  ranks.clear();
  return said;
}

void expect_complaint(const std::function<void(Job&)>& change, const std::string& sentence) {
  const auto said = complaints(change);
  EXPECT_THAT(said[0], HasSubstr(sentence));
  EXPECT_EQ(said[0], said[1]);
}

TEST(Agreement, RanksThatAgreeTrain) {
  EXPECT_THAT(complaints([](Job&) {}), testing::Each(""));
}

TEST(Agreement, EveryRankHearsWhichPlanOrSettingDiffers) {
  expect_complaint([](Job& job) { job.schedule = "gpipe"; },
                   "schedule differs: rank 0 has '1f1b p=2 m=4', rank 1 has 'gpipe p=2 m=4'");
  expect_complaint([](Job& job) { job.micro_batches = 5; }, "schedule differs: rank 0 has '1f1b");
  expect_complaint([](Job& job) { job.options.run.recompute = {.kind = RecomputeKind::All}; },
                   "plan differs: rank 0 has '");
  expect_complaint([](Job& job) { job.boundaries = {1}; },
                   "cut differs: rank 0 has 'even', rank 1 has '0,1,2'");
  expect_complaint([](Job& job) { job.options.step.seed = 7; },
                   "seed differs: rank 0 has '1', rank 1 has '7'");
  expect_complaint([](Job& job) { job.options.step.optimizer.kind = OptimizerKind::Sgd; },
                   "optimizer differs: rank 0 has 'adamw', rank 1 has 'sgd'");
  expect_complaint([](Job& job) { job.options.step.optimizer.beta2 = 0.9999; },
                   "beta2 differs: rank 0 has '0.999', rank 1 has '0.9999'");
  expect_complaint([](Job& job) { job.options.step.optimizer.weight_decay = 1e-9; },
                   "weight decay differs: rank 0 has '0', rank 1 has '1e-09'");
  expect_complaint([](Job& job) { job.options.step.learning_rate.base *= 1 + 1e-15; },
                   "learning rate differs: rank 0 has '0.1");
  expect_complaint([](Job& job) { job.options.step.learning_rate.warm_up = 2; }, "warm-up differs");
  expect_complaint(
      [](Job& job) { job.options.step.learning_rate.function = [](std::int64_t) { return 0.1; }; },
      "learning-rate schedule differs: rank 0 has 'constant', rank 1 has 'one of its own'");
  expect_complaint(
      [](Job& job) {
        job.options.step.learning_rate = {.kind = LearningRateKind::Step, .base = 0.1, .every = 3};
      },
      "learning-rate schedule differs: rank 0 has 'constant', rank 1 has 'step:every=3'");
  expect_complaint(
      [](Job& job) {
        job.options.step.parameters = {parse_parameter_group("*.bias:lr=0.1,frozen")};
      },
      "parameter groups differs: rank 0 has 'none', rank 1 has '*.bias:lr=0.1,frozen=yes'");
  expect_complaint([](Job& job) { job.options.step.clip_norm = 1; },
                   "clip norm differs: rank 0 has 'none', rank 1 has '1'");
  expect_complaint([](Job& job) { job.options.save.folder = "/nowhere"; },
                   "checkpoints differs: rank 0 has 'not saved', rank 1 has 'saved every 0 steps'");
}

TEST(Agreement, EveryRankHearsWhatDiffersInTheData) {
  expect_complaint([](Job& job) { job.data = digits_from(0, 39); },
                   "number of samples differs: rank 0 has '40', rank 1 has '39'");
  expect_complaint([](Job& job) { job.data = digits_from(1, 40); }, "data differs: rank 0 has '");
  expect_complaint([](Job& job) { job.options.fit.batch_size = 10; },
                   "batch size differs: rank 0 has '20', rank 1 has '10'");
  expect_complaint([](Job& job) { job.options.fit.steps = 1; }, "steps differs: rank 0 has '0'");
  expect_complaint([](Job& job) { job.evaluated_at_once = 7; },
                   "batch size differs: rank 0 has '20', rank 1 has '7'");
}

/// Two ranks in steps of their own over mini-batches from row `first` on; what both throw.
std::string complaint_of_step(const std::function<StepData&(int rank, Batch& batch)>& given,
                              const std::function<int(int rank)>& first,
                              int accumulate = 1) {
  InProcessHub hub(2);
  std::vector<std::string> said(2);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank, endpoint = hub.endpoint(Rank{rank})] {
      ProcessGroup group(*endpoint);
      const TrainerOptions options{.step = {.accumulate = accumulate}};
      const Program program = generate("1f1b", {.ranks = 2, .micro_batches = 2});
      Trainer trainer(rank_parts(parse_model("mlp:64-8-10"), {program}, options, *endpoint, group));
      Batch batch(digits_from(first(rank), 7), 2 * accumulate);
      const std::string before = trainer.weights_hash();
      try {
        trainer.step(given(rank, batch), 7);
      } catch (const Mismatch& error) {
        said[static_cast<std::size_t>(rank)] = error.what();
      }
      EXPECT_EQ(trainer.weights_hash() == before, !said[static_cast<std::size_t>(rank)].empty());
      endpoint->leave(std::chrono::steady_clock::now() + std::chrono::seconds(30));
    });
  ranks.clear();
  EXPECT_EQ(said[0], said[1]);
  return said[0];
}

int same_row(int) {
  return 3;
}

int another_row(int rank) {
  return 3 + rank;
}

StepData& whole(int, Batch& batch) {
  return batch;
}

TEST(Agreement, OfMiniBatchesIsComparedInEveryStep) {
  EXPECT_EQ(complaint_of_step(whole, same_row), "");
  EXPECT_EQ(complaint_of_step(whole, same_row, 3), "");
  for (const int accumulate : {1, 3})
    EXPECT_THAT(complaint_of_step(whole, another_row, accumulate),
                testing::AllOf(HasSubstr("inputs of the mini-batch differs: rank 0 has '"),
                               HasSubstr("in the same order. The likely cause is a shuffle"),
                               HasSubstr("the same seed in all of them")));
}

/// A mini-batch of which a process holds inputs or targets alone.
class HalfOf final : public StepData {
 public:
  HalfOf(Batch& batch, bool inputs) : batch_(batch), has_inputs_(inputs) {}

  TensorList inputs(const Unit& unit) override {
    return has_inputs_ ? batch_.inputs(unit) : TensorList();
  }
  TensorList targets(const Unit& unit) override {
    return has_inputs_ ? TensorList() : batch_.targets(unit);
  }
  [[nodiscard]] std::int64_t first_sample(const Unit& unit) const override {
    return batch_.first_sample(unit);
  }

 private:
  Batch& batch_;
  bool has_inputs_;
};

TEST(Agreement, OfMiniBatchesIsAmongThoseThatHoldThem) {
  std::array<std::optional<HalfOf>, 2> halves;
  const auto own_half = [&](int rank, Batch& batch) -> StepData& {
    return halves[static_cast<std::size_t>(rank)].emplace(batch, rank == 0);
  };
  EXPECT_EQ(complaint_of_step(own_half, another_row), "");
  const auto all_but_inputs = [&](int rank, Batch& batch) -> StepData& {
    if (rank == 0) return batch;
    return halves[1].emplace(batch, false);
  };
  EXPECT_THAT(complaint_of_step(all_but_inputs, another_row),
              HasSubstr("targets of the mini-batch differs"));
}

/// Targets of one row differ by a bit, in one micro-batch that rank 0 does not need.
TEST(Agreement, OfMiniBatchesIsAboutEveryBit) {
  const auto flipped = [](int rank, Batch& batch) -> StepData& {
    if (rank == 0) {
      TensorList targets = batch.targets({MicroBatch{1}, Slice{0}});
      targets[0].as<std::int32_t>()[2] ^= 1;
    }
    return batch;
  };
  EXPECT_THAT(complaint_of_step(flipped, same_row), HasSubstr("targets of the mini-batch differs"));
}

/// One rank can be stopped, the other has no way to stop: both ask, or neither does.
TEST(Agreement, OfStopsIsSoughtWhereAnyRankCanStop) {
  InProcessHub hub(2);
  std::vector<std::jthread> ranks;
  std::array<FitReport, 2> reports;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank, endpoint = hub.endpoint(Rank{rank})] {
      ProcessGroup group(*endpoint, std::chrono::seconds(60));
      const TrainerOptions options{.fit = {.batch_size = 10, .epochs = 2}};
      const Program program = generate("1f1b", {.ranks = 2, .micro_batches = 2});
      Trainer trainer(rank_parts(parse_model("mlp:64-8-10"), {program}, options, *endpoint, group));
      std::stop_source stop;
      trainer.on_step = [&](const StepReport& step) {
        if (rank == 1 && step.global_step == 3) stop.request_stop();
      };
      try {
        reports[static_cast<std::size_t>(rank)] =
            trainer.fit(digits_from(0, 40), rank == 1 ? stop.get_token() : std::stop_token());
        endpoint->leave(std::chrono::steady_clock::now() + std::chrono::seconds(30));
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
        endpoint->cancel(error.what());
      }
    });
  ranks.clear();
  for (const FitReport& report : reports) {
    EXPECT_TRUE(report.stopped);
    EXPECT_EQ(report.samples, 30);
  }
}

}  // namespace
}  // namespace millrace
