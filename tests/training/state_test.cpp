// The store of training state: read and written by name, alike in every cut; and a run that is
// taken apart and put together again through it is the run itself, bit for bit.
#include "millrace/training/state.hpp"

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/training/ranks.hpp"
#include "millrace/transport/process_group.hpp"
#include "tests/training/first_digits.hpp"
#include "tests/training/on_ranks.hpp"

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing_training::first_digits;
using testing_training::kModel;
using testing_training::on_ranks;
using testing_training::plain_options;

const char* const kDeepModel = "mlp:64-20-16-16-16-10,dropout=0.2";

std::vector<float> read(const Trainer& trainer,
                        const std::string& name,
                        std::string_view part = "value") {
  const auto values = trainer.state().read(name, part).as<float>();
  return {values.begin(), values.end()};
}

/// All that the store of one or several processes held.
struct Saved {
  std::map<std::pair<std::string, std::string>, std::vector<float>> tensors;  // by name and part
  TrainingCounters counters;
};

void save(const Trainer& trainer, Saved& saved) {
  const TrainingState& state = trainer.state();
  for (const std::string& name : state.names())
    for (const std::string& part : state.parts())
      if (state.hosts(name)) saved.tensors[{name, part}] = read(trainer, name, part);
  saved.counters = state.counters();
}

void load(Trainer& trainer, const Saved& saved) {
  for (const auto& [place, values] : saved.tensors)
    if (trainer.state().hosts(place.first))
      trainer.state().write(place.first, values, place.second);
  trainer.state().set_counters(saved.counters);
}

std::string message_of(const auto& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no exception";
}

TEST(State, NamesAllParametersAndTheirParts) {
  TestOptions options = plain_options(3, 2);
  EXPECT_THAT(Trainer(parse_model(kModel), options.pipeline, options).state().names(),
              ElementsAre("layers.0.bias",
                          "layers.0.weight",
                          "layers.1.bias",
                          "layers.1.weight",
                          "layers.2.bias",
                          "layers.2.weight"));
  EXPECT_THAT(Trainer(parse_model(kModel), options.pipeline, options).state().parts(),
              ElementsAre("value", "gradient"));
  options.step.optimizer.kind = OptimizerKind::Momentum;
  EXPECT_THAT(Trainer(parse_model(kModel), options.pipeline, options).state().parts(),
              ElementsAre("value", "gradient", "momentum"));
  options.step.optimizer.kind = OptimizerKind::AdamW;
  EXPECT_THAT(Trainer(parse_model(kModel), options.pipeline, options).state().parts(),
              ElementsAre("value", "gradient", "first_moment", "second_moment"));
}

TEST(State, RefusesWhatItHasNotAndNamesTheNearest) {
  TestOptions options = plain_options(3, 2);
  options.step.optimizer.kind = OptimizerKind::Momentum;
  Trainer trainer(parse_model(kModel), options.pipeline, options);
  TrainingState& state = trainer.state();
  EXPECT_EQ(message_of([&] { (void)state.read("layer.2.weight"); }),
            "no parameter is called 'layer.2.weight'; the nearest of 6 is 'layers.2.weight'");
  EXPECT_EQ(message_of([&] { (void)state.read("layers.2.bias", "momentun"); }),
            "parameters have no part 'momentun'; the nearest of 3 is 'momentum'");
  EXPECT_EQ(message_of([&] { state.write("layers.2.bias", std::vector<float>(9)); }),
            "the value of 'layers.2.bias' is f32 10, got 9 f32 numbers");
  EXPECT_EQ(message_of([&] {
              state.write("layers.2.bias", Tensor(DType::F32, {2, 5}), "momentum");
            }),
            "the momentum of 'layers.2.bias' is f32 10, got f32 2x5");
  EXPECT_EQ(message_of([&] { state.set_counters({.global_step = -1}); }),
            "counter global_step must be at least 0, got -1");
  EXPECT_EQ(state.counters().global_step, 0);
}

TEST(State, WeightsSetInAnotherCutAreTheSameModel) {
  Trainer three = trainer_of(parse_model(kModel), plain_options(3, 2));
  TestOptions options = plain_options(2, 4);
  options.step.seed = 99;
  Trainer two(parse_model(kModel), options.pipeline, options);
  ASSERT_NE(two.weights_hash(), three.weights_hash());
  for (const std::string& name : three.state().names())
    two.state().write(name, three.state().read(name));
  EXPECT_EQ(two.weights_hash(), three.weights_hash());
}

TEST(State, AverageOfTwoModels_HasExactBits) {
  TestOptions options = plain_options(3, 2);
  Trainer one(parse_model(kModel), options.pipeline, options);
  options.step.seed = 2;
  Trainer other(parse_model(kModel), options.pipeline, options);
  for (const std::string& name : one.state().names()) {
    std::vector<float> values = read(one, name);
    const std::vector<float> more = read(other, name);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = 0.5F * (values[i] + more[i]);
    one.state().write(name, values);
    EXPECT_EQ(read(one, name), values);
  }
}

TEST(State, MomentaSetToZeroAreForgotten) {
  TestOptions options = plain_options(3, 2);
  options.step.optimizer.kind = OptimizerKind::Momentum;
  Trainer trainer(parse_model(kModel), options.pipeline, options);
  Batch batch(first_digits(12), 2);
  trainer.step(batch);
  Trainer fresh(parse_model(kModel), options.pipeline, options);
  for (const std::string& name : trainer.state().names()) {
    fresh.state().write(name, trainer.state().read(name));
    EXPECT_THAT(read(trainer, name, "gradient"), testing::Each(0.0F));
    std::vector<float> momentum = read(trainer, name, "momentum");
    EXPECT_THAT(momentum, testing::Contains(testing::Ne(0.0F))) << name;
    momentum.assign(momentum.size(), 0.0F);
    trainer.state().write(name, momentum, "momentum");
  }
  trainer.step(batch);
  fresh.step(batch);
  EXPECT_EQ(trainer.weights_hash(), fresh.weights_hash());
}

TEST(State, Writes_ReachReplicasAndTiedWeights) {
  TestOptions options = plain_options(2, 4);
  options.pipeline.schedule = "chimera";
  options.step.tied = {{"layers.1.weight", "layers.3.weight"}};
  Trainer trainer(parse_model("mlp:64-16-16-16-16-10"), options.pipeline, options);
  const std::vector<float> values(16 * 16, 0.25F);
  trainer.state().write("layers.3.weight", values);
  trainer.state().freeze("layers.1.weight");
  EXPECT_TRUE(trainer.state().frozen("layers.3.weight"));
  int copies = 0;
  for (const HostedStage& hosted : trainer.stages())
    for (const Parameter* parameter : hosted.body->parameters()) {
      const bool tied =
          parameter->name == "layers.1.weight" || parameter->name == "layers.3.weight";
      EXPECT_EQ(parameter->frozen, tied) << parameter->name;
      if (!tied) continue;
      ++copies;
      EXPECT_THAT(parameter->value.as<float>(), testing::Each(0.25F));
    }
  EXPECT_EQ(copies, 4);
}

TestOptions options_of_a_run(OptimizerKind kind, int ranks) {
  TestOptions options = plain_options(ranks, 4);
  options.step.optimizer.kind = kind;
  options.step.clip_norm = 0.5;
  options.step.learning_rate = {.kind = LearningRateKind::Cosine, .base = 0.02, .warm_up = 3};
  options.fit.batch_size = 25;  // 60 samples: 25, 25, 10
  options.fit.epochs = 4;
  return options;
}

/// As many steps as that, of a fit that would run longer.
void fit_until(Trainer& trainer, BatchSource& batches, int steps) {
  std::stop_source stop;
  trainer.on_step = [&](const StepReport&) {
    if (--steps == 0) stop.request_stop();
  };
  trainer.fit(batches, stop.get_token());
}

TEST(Resumed, AnyPartition_BitsOfTheWholeRun) {
  const Dataset data = first_digits(60);
  for (const auto kind : {OptimizerKind::AdamW, OptimizerKind::Momentum}) {
    Trainer whole = trainer_of(parse_model(kDeepModel), options_of_a_run(kind, 2));
    whole.fit(data);
    for (const int steps : {1, 3, 7, 11}) {
      Trainer first = trainer_of(parse_model(kDeepModel), options_of_a_run(kind, 4));
      Loader loader(data, first.loader_options());
      fit_until(first, loader, steps);
      Saved saved;
      save(first, saved);
      EXPECT_EQ(saved.counters.position, (DataPosition{steps / 3, steps % 3}));

      TestOptions options = options_of_a_run(kind, 3);
      Trainer second(parse_model(kDeepModel), options.pipeline, options);
      load(second, saved);
      Loader rest(data, second.loader_options());
      rest.seek(second.state().counters().position);
      second.fit(rest);
      EXPECT_EQ(second.weights_hash(), whole.weights_hash()) << name_of(kind) << " after " << steps;
      EXPECT_EQ(second.state().counters(), whole.state().counters());
    }
  }
}

TrainerParts parts_of(TestOptions options, Endpoint& endpoint, ProcessGroup& group) {
  options.pipeline.shape.ranks = endpoint.world();
  const Program program = generate(
      "1f1b", {.ranks = endpoint.world(), .micro_batches = options.pipeline.shape.micro_batches});
  return rank_parts(parse_model(kDeepModel), {program}, options, endpoint, group);
}

TEST(Resumed, OtherProcessCount_SameBits) {
  const Dataset data = first_digits(60);
  for (const auto kind : {OptimizerKind::AdamW, OptimizerKind::Momentum}) {
    const TestOptions options = options_of_a_run(kind, 1);
    Trainer whole(parse_model(kDeepModel), options.pipeline, options);
    whole.fit(data);
    std::mutex mutex;
    Saved saved;
    on_ranks(3, [&](Endpoint& endpoint, ProcessGroup& group) {
      Trainer first(parts_of(options, endpoint, group));
      Loader loader(data, first.loader_options());
      fit_until(first, loader, 5);
      const std::lock_guard lock(mutex);
      save(first, saved);
    });
    on_ranks(2, [&](Endpoint& endpoint, ProcessGroup& group) {
      Trainer second(parts_of(options, endpoint, group));
      load(second, saved);
      Loader rest(data, second.loader_options());
      rest.seek(second.state().counters().position);
      second.fit(rest);
      EXPECT_EQ(second.weights_hash(), whole.weights_hash()) << name_of(kind);
    });
  }
}

TEST(State, OneProcess_NamesWhatOthersHost) {
  const TestOptions options = options_of_a_run(OptimizerKind::AdamW, 1);
  on_ranks(3, [&](Endpoint& endpoint, ProcessGroup& group) {
    Trainer trainer(parts_of(options, endpoint, group));
    const bool first = endpoint.rank() == Rank{0};
    EXPECT_EQ(trainer.state().names().size(), 10U);
    EXPECT_EQ(trainer.state().hosts("layers.0.weight"), first);
    if (first) return;
    EXPECT_EQ(message_of([&] { (void)trainer.state().read("layers.0.weight"); }),
              "parameter 'layers.0.weight' lives in another process, that of rank 0; hosts() "
              "tells which live here");
  });
}

TEST(Fit, OfProcessesThatHaveComeUnequallyFarIsRefused) {
  const Dataset data = first_digits(60);
  const TestOptions options = options_of_a_run(OptimizerKind::AdamW, 1);
  on_ranks(2, [&](Endpoint& endpoint, ProcessGroup& group) {
    Trainer trainer(parts_of(options, endpoint, group));
    trainer.state().set_counters({.global_step = endpoint.rank().value});
    try {
      trainer.fit(data);
      ADD_FAILURE() << "no exception";
    } catch (const Mismatch& error) {
      EXPECT_THAT(error.what(), HasSubstr("updates done differs: rank 0 has '0', rank 1 has '1'"));
    }
  });
}

}  // namespace
}  // namespace millrace
