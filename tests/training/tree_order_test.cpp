// Training with the gradients added by a tree: one hash for every schedule, whether its own order
// ascends or not, every cut into passes, and a process for each rank.
#include <mutex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/verify.hpp"
#include "millrace/training/ranks.hpp"
#include "millrace/training/trainer.hpp"
#include "tests/training/first_digits.hpp"
#include "tests/training/on_ranks.hpp"

namespace millrace {
namespace {

using testing::HasSubstr;
using testing_training::first_digits;
using testing_training::on_ranks;
using testing_training::plain_options;

constexpr int kOfUpdate = 8;  // micro-batches
const char* const kDeepModel = "mlp:64-16-16-16-16-16-16-16-10,dropout=0.2";

/// Mini-batches of 25, 25 and 5 samples: unequal micro-batches, and some of the last are empty.
TestOptions tree_options(const std::string& schedule, int ranks, int passes = 1) {
  TestOptions options = plain_options(ranks, kOfUpdate / passes);
  options.pipeline.schedule = schedule;
  options.step.accumulate = passes;
  options.step.accumulate_order = AccumulateOrder::Tree;
  options.step.optimizer.kind = OptimizerKind::AdamW;
  options.step.clip_norm = 0.5;
  options.step.learning_rate.base = 0.01;
  options.fit.batch_size = 25;
  options.fit.epochs = 2;
  return options;
}

std::string hash_of(const TestOptions& options) {
  Trainer trainer(parse_model(kDeepModel), options.pipeline, options);
  trainer.fit(first_digits(55));
  EXPECT_EQ(trainer.global_step(), 6);
  return trainer.weights_hash();
}

TEST(TreeOrder, GivesOneHashForEverySchedule) {
  const std::string expected = hash_of(tree_options("1f1b", 1));
  TestOptions ascending = tree_options("1f1b", 1);
  ascending.step.accumulate_order = AccumulateOrder::Ascending;
  EXPECT_NE(hash_of(ascending), expected);
  int tried = 0, others = 0;
  for (const ScheduleEntry& schedule : schedules())
    for (const int ranks : {2, 4}) {
      if (schedule.takes("slices")) continue;  // of sequences
      const TestOptions options = tree_options(std::string(schedule.name), ranks);
      try {
        const Program program =
            generate(schedule.name, {.ranks = ranks, .micro_batches = kOfUpdate});
        const Shape& shape = program.shape;
        if (shape.replicas() > 1 || shape.forward_only) continue;
        others += accumulation(program).ascending ? 0 : 1;
      } catch (const InvalidArgument&) {
        continue;  // has no meaning at this size
      }
      ++tried;
      EXPECT_EQ(hash_of(options), expected) << schedule.name << " on " << ranks;
    }
  EXPECT_GT(tried, 25);
  EXPECT_GT(others, 0) << "no schedule with an order of its own";
}

TEST(TreeOrder, PassesAndFlowGraph_OneHash) {
  const std::string expected = hash_of(tree_options("1f1b", 1));
  for (const int passes : {2, 4, 8})
    for (const char* const executor : {"sequential", "flow-graph", "ranks"}) {
      TestOptions options = tree_options("zb-h1", 2, passes);
      options.run.executor = executor;
      EXPECT_EQ(hash_of(options), expected) << passes << " passes, " << executor;
    }
}

TEST(TreeOrder, GivesOneHashWithAProcessForEachRank) {
  const std::string expected = hash_of(tree_options("1f1b", 1));
  const TestOptions options = tree_options("zb-v", 2, 2);
  std::mutex mutex;
  std::vector<std::string> hashes;
  on_ranks(2, [&](Endpoint& endpoint, ProcessGroup& group) {
    const Program program =
        generate("zb-v", {.ranks = 2, .micro_batches = options.pipeline.shape.micro_batches});
    Trainer trainer(rank_parts(parse_model(kDeepModel), {program}, options, endpoint, group));
    trainer.fit(first_digits(55));
    const std::string hash = trainer.weights_hash();
    const std::lock_guard lock(mutex);
    hashes.push_back(hash);
  });
  EXPECT_THAT(hashes, testing::ElementsAre(expected, expected));
}

TEST(TreeOrder, IsRefusedForCopiesOfStages) {
  try {
    Trainer trainer = trainer_of(parse_model(kDeepModel), tree_options("chimera", 2));
    ADD_FAILURE() << "not refused";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("accumulate_order tree: a pipeline with 2 copies"));
  }
}

TEST(TreeOrder, StopsOnlyBetweenUpdates) {
  TestOptions options = tree_options("1f1b", 2, 4);
  Trainer trainer(parse_model(kDeepModel), options.pipeline, options);
  std::stop_source stop;
  trainer.on_pass = [&] { stop.request_stop(); };
  EXPECT_TRUE(trainer.fit(first_digits(55), stop.get_token()).stopped);
  EXPECT_EQ(trainer.state().counters().partial.micro_batches, 0);
  EXPECT_EQ(trainer.global_step(), 1);
  trainer.on_pass = {};
}

}  // namespace
}  // namespace millrace
