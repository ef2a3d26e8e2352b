// What a unit will keep, known once one of its size has run; and freed memory kept for the next.
#include "millrace/torch/memory.hpp"

#include <malloc.h>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/training/records.hpp"
#include "millrace/training/trainer.hpp"
#include "torch/small_gpt.hpp"

namespace millrace::testing_torch {
namespace {

using testing::Each;
using testing::ElementsAreArray;

constexpr int kKeptParts = 6;

std::vector<UnitSize> sizes_of(const Sentences& data) {
  std::vector<UnitSize> sizes;
  for (const torch::Tensor& tokens : data.tokens())
    sizes.push_back({.samples = tokens.size(0), .positions = tokens.size(1)});
  return sizes;
}

TEST(TorchStash, IsPredictedAfterEveryUnitSize) {
  for (const char* schedule : {"1f1b", "gpipe", "zb-h1"})
    for (const bool recompute : {false, true}) {
      const Program plain = generate(schedule, {.ranks = 2, .micro_batches = kKeptParts});
      const Program program = recompute ? insert_recompute(plain) : plain;
      const torch::nn::Sequential model = small_gpt();
      Sentences data(kKeptParts);
      Trainer trainer(
          {program}, torch_pipeline(model, next_word_loss, 2), {.run = {.executor = "ranks"}});
      const auto predicted = [&] {
        return predict_stash_peaks(trainer.executor().program(), trainer.stages(), sizes_of(data));
      };
      EXPECT_THAT(predicted(), Each(0U));
      const StepReport report = trainer.step(data, data.total_weight());
      EXPECT_THAT(predicted(), ElementsAreArray(report.peak_stash_bytes)) << schedule << recompute;
    }
}

TEST(TorchStash, UnseenSize_ScalesWithSamplesAndPositions) {
  const torch::nn::Sequential model = small_gpt();
  Sentences data(1);  // of three samples
  Trainer trainer({generate("1f1b", {.ranks = 1, .micro_batches = 1})},
                  torch_pipeline(model, next_word_loss, 1),
                  {.run = {.executor = "sequential"}});
  (void)trainer.step(data, data.total_weight());
  const auto kept = [&](std::int64_t samples, std::int64_t positions) {
    return trainer.stages()[0]
        .body->stash_bytes({.samples = samples, .positions = positions}, false)
        .after_forward;
  };

  EXPECT_GT(kept(3, kPositions), 0U);
  EXPECT_EQ(kept(6, kPositions), 2 * kept(3, kPositions));
  EXPECT_EQ(kept(3, 2 * kPositions), 2 * kept(3, kPositions));
  EXPECT_EQ(kept(3, 1), kept(3, kPositions)) << "without positions samples alone decide";
}

TEST(TorchMemory, IsKeptWhereThatIsAskedFor) {
  // Each block is a MiB smaller than the one before: what it left, less alignment, holds it.
  constexpr std::size_t kMiB = std::size_t{1} << 20U;
  constexpr std::size_t kLargest = 48 * kMiB;
  ASSERT_TRUE(keep_freed_memory());
  const auto taken_from_the_system_after = [](std::size_t bytes) {
    (void)torch::ones({static_cast<std::int64_t>(bytes / sizeof(float))});
    const auto now = mallinfo2();
    return now.arena + now.hblkhd;
  };
  const std::size_t after = taken_from_the_system_after(kLargest);
  EXPECT_GE(after, kLargest) << "it was given back";
  for (std::size_t less = 1; less <= 5; ++less)
    EXPECT_EQ(taken_from_the_system_after(kLargest - less * kMiB), after);
}

}  // namespace
}  // namespace millrace::testing_torch
