// Choosing the layers that run again: its text form, the segments that it makes of a cut model, the
// fit into a number of bytes, and training with it, bit by bit and byte by byte.
#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/training/records.hpp"
#include "millrace/training/trainer.hpp"
#include "millrace/training/trainer_options.hpp"
#include "training/first_digits.hpp"

namespace millrace::testing_training {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr const char* kNormed = "mlp:64-24-24-24-16-10,tanh,norm,dropout=0.1";  // 13 layers

TEST(RecomputeText, IsReadAndRefusedInASentence) {
  for (const char* text :
       {"none", "all", "stages:0,2-3", "every-4", "selective:2,5-7,layer_norm", "auto:4096"})
    EXPECT_EQ(to_string(parse_recompute(text)), text);
  EXPECT_EQ(parse_recompute("auto:3M").bytes, 3U << 20U);
  for (const char* wrong : {"",
                            "some",
                            "every-0",
                            "every-",
                            "every-x",
                            "selective:",
                            "selective:1,,2",
                            "auto:",
                            "auto:0",
                            "auto:-1",
                            "auto:1T",
                            "auto:99999999999999999999"})
    EXPECT_THROW((void)parse_recompute(wrong), InvalidArgument) << wrong;
}

std::vector<int> segments(const char* text, std::vector<int> boundaries) {
  const ModelSpec model = parse_model(kNormed);
  ScheduleOptions options{.ranks = static_cast<int>(boundaries.size()) - 1, .micro_batches = 4};
  return recompute_segments(
      parse_recompute(text), model, boundaries, generate("1f1b", options), {.samples = 8});
}

TEST(RecomputeSegments, BeginAfterBoundariesKeptLayersEveryK) {
  constexpr int k = StageModule::kKept;
  EXPECT_THAT(segments("none", {0, 6, 13}), ElementsAre(k, k, k, k, k, k, k, k, k, k, k, k, k));
  EXPECT_THAT(segments("all", {0, 6, 13}), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(segments("stages:1", {0, 6, 13}), ElementsAre(k, k, k, k, k, k, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(segments("every-4", {0, 6, 13}), ElementsAre(0, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 1, 2));
  EXPECT_THAT(segments("selective:1,2,4-7", {0, 6, 13}),
              ElementsAre(k, 0, 0, k, 1, 1, 0, 0, k, k, k, k, k));
  EXPECT_THAT(segments("selective:layer_norm", {0, 6, 13}),
              ElementsAre(k, k, 0, k, k, 1, k, k, 0, k, k, 1, k));
}

TEST(RecomputeSegments, AreThoseOfAPlanThatRecomputesByItself) {
  constexpr int k = StageModule::kKept;
  const ModelSpec model = parse_model(kNormed);
  const std::vector<int> boundaries{0, 6, 13};
  const Program plan =
      insert_recompute(generate("1f1b", {.ranks = 2, .micro_batches = 4}), {true, false});
  EXPECT_THAT(recompute_segments({}, model, boundaries, plan, {.samples = 8}),
              ElementsAre(0, 0, 0, 0, 0, 0, k, k, k, k, k, k, k));
  EXPECT_THAT(
      [&] {
        (void)recompute_segments(
            {.kind = RecomputeKind::All}, model, boundaries, plan, {.samples = 8});
      },
      ThrowsMessage<InvalidArgument>(
          "recompute 'all': the plan recomputes stages:0 by itself; leave it out"));
}

TEST(RecomputeSegments, OfLayersThatAreNotThereAreRefused) {
  EXPECT_THAT(
      [] {
        (void)segments("stages:1-2", {0, 6, 13});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("there is no stage 2, the stages are 0 to 1")));
  EXPECT_THAT(
      [] {
        (void)segments("selective:13", {0, 13});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("the model has layers 0 to 12")));
  EXPECT_THAT(
      [] {
        (void)segments("selective:norm", {0, 13});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("of the kinds linear, dropout, layer_norm")));
}

std::vector<std::size_t> peaks_of(const Trainer& trainer, int samples) {
  const auto& shape = trainer.executor().program().shape;
  const std::vector<UnitSize> sizes(static_cast<std::size_t>(shape.micro_batches),
                                    {.samples = samples});
  return predict_stash_peaks(trainer.executor().program(), trainer.stages(), sizes);
}

TEST(RecomputeAuto, FitsAndSaysWhenItCannot) {
  const ModelSpec model = parse_model(kNormed);
  TestOptions options = plain_options(3, 4);
  options.fit.batch_size = 32;
  const auto whole = peaks_of(Trainer(model, options.pipeline, options), 8);
  const std::size_t most = *std::ranges::max_element(whole);
  options.run.recompute = {.kind = RecomputeKind::All};
  const auto least = peaks_of(Trainer(model, options.pipeline, options), 8);
  const std::size_t bound = (most + *std::ranges::max_element(least)) / 2;

  options.run.recompute = {.kind = RecomputeKind::Auto, .bytes = most};
  EXPECT_EQ(peaks_of(Trainer(model, options.pipeline, options), 8), whole);
  options.run.recompute.bytes = bound;
  const auto fitted = peaks_of(Trainer(model, options.pipeline, options), 8);
  EXPECT_LE(*std::ranges::max_element(fitted), bound);
  for (std::size_t rank = 0; rank < whole.size(); ++rank)  // who fits keeps all
    EXPECT_EQ(fitted[rank] == whole[rank], whole[rank] <= bound) << rank;
  options.run.recompute.bytes = 100;
  EXPECT_THAT([&] { Trainer trainer(model, options.pipeline, options); },
              ThrowsMessage<InvalidArgument>(HasSubstr("bytes, whatever is recomputed")));
}

/// Against every set of layers of one rank: never more layers than one beyond the fewest.
TEST(RecomputeAuto, ChoosesFewLayers) {
  const ModelSpec model = parse_model("mlp:64-24-16-24-12-10,gelu,norm");
  const std::vector<int> boundaries{0, model.layer_count()};
  const Program program = generate("gpipe", {.ranks = 1, .micro_batches = 4});
  const auto stage = stage_without_parameters(model, boundaries, 0);
  const auto peak_of = [&](const std::vector<int>& segments) {
    stage->recompute_in(segments);
    const HostedStage hosted{Replica{0}, Stage{0}, stage.get()};
    const Program recomputing = insert_recompute(program, recomputed_stages(segments, boundaries));
    return predict_stash_peaks(
        recomputing, {&hosted, 1}, std::vector<UnitSize>(4, {.samples = 8}))[0];
  };
  const int layers = model.layer_count();
  const auto subset = [&](unsigned chosen) {
    std::vector<int> segments;
    int next = 0;
    for (int i = 0; i < layers; ++i) {
      const bool again = (chosen >> static_cast<unsigned>(i) & 1U) != 0;
      const bool before = i > 0 && segments.back() != StageModule::kKept;
      segments.push_back(again ? (before ? next - 1 : next++) : StageModule::kKept);
    }
    return segments;
  };
  const auto count = [](const std::vector<int>& segments) {
    return std::ranges::count_if(segments, [](int s) { return s != StageModule::kKept; });
  };
  const std::size_t most = peak_of(subset(0));
  const std::size_t least = peak_of(subset((1U << static_cast<unsigned>(layers)) - 1));
  for (const double share : {0.9, 0.7, 0.5, 0.3, 0.1}) {
    const auto bound = least + static_cast<std::size_t>(share * static_cast<double>(most - least));
    std::ptrdiff_t fewest = layers;
    for (unsigned chosen = 0; chosen < 1U << static_cast<unsigned>(layers); ++chosen)
      if (count(subset(chosen)) < fewest && peak_of(subset(chosen)) <= bound)
        fewest = count(subset(chosen));
    const auto found = recompute_segments(
        {.kind = RecomputeKind::Auto, .bytes = bound}, model, boundaries, program, {.samples = 8});
    EXPECT_LE(peak_of(found), bound);
    EXPECT_LE(count(found), fewest + 1) << share;
  }
}

class RecomputeBits : public testing::TestWithParam<std::string> {};

TEST_P(RecomputeBits, SameBits_StashAsPredicted) {
  const ModelSpec model = parse_model(kNormed);
  TestOptions options = plain_options(3, 4);
  options.step.optimizer.kind = OptimizerKind::Adam;
  options.step.learning_rate.base = 3e-3;
  options.fit.batch_size = 32;
  options.fit.epochs = 2;
  const Dataset data = first_digits(64);
  Trainer plain(model, options.pipeline, options);
  plain.fit(data);
  options.run.executor = GetParam();
  for (const char* schedule : {"1f1b", "zb-h1", "gpipe"})
    for (const char* choice :
         {"all", "stages:0,2", "every-1", "every-2", "selective:layer_norm,dropout", "auto:20K"}) {
      SCOPED_TRACE(std::string(schedule) + " " + choice);
      options.pipeline.schedule = schedule;
      options.run.recompute = parse_recompute(choice);
      Trainer trainer(model, options.pipeline, options);
      std::vector<std::size_t> counted;
      trainer.on_step = [&](const StepReport& report) { counted = report.peak_stash_bytes; };
      trainer.fit(data);
      EXPECT_EQ(trainer.weights_hash(), plain.weights_hash());
      EXPECT_EQ(counted, peaks_of(trainer, 8));
    }
}

INSTANTIATE_TEST_SUITE_P(Executors,
                         RecomputeBits,
                         testing::Values("sequential", "ranks", "flow-graph"),
                         [](const auto& of) {
                           std::string name = of.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace millrace::testing_training
