// The promise of the library: whatever the cut, the schedule and the executor, the weights have the
// bits of plain gradient accumulation in one thread. The plain loop is written out here, without
// program, executor, trainer or loader.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/stages/models.hpp"
#include "millrace/stages/partition.hpp"
#include "millrace/training/optimizer.hpp"
#include "millrace/training/state.hpp"
#include "millrace/training/trainer.hpp"
#include "support/test_options.hpp"

namespace millrace {
namespace {

constexpr int kMicroBatches = 4;
constexpr std::int64_t kBatch = 30;  // 30 = 8 + 8 + 7 + 7: unequal micro-batches
constexpr std::int64_t kEpochs = 3;
constexpr std::uint64_t kSeed = 7;
constexpr double kClip = 0.5;

ModelSpec small_model() {
  return parse_model("mlp:64-24-20-16-12-16-12-10,dropout=0.1");  // 13 layers
}

/// 100 digits: three whole mini-batches and a short last one of 10.
Dataset small_data() {
  std::vector<std::int32_t> rows(100);
  std::iota(rows.begin(), rows.end(), 0);
  return select_rows(digits(), rows);
}

TestOptions small_options() {
  TestOptions options;
  options.pipeline.shape.micro_batches = kMicroBatches;
  options.fit.batch_size = kBatch;
  options.fit.epochs = kEpochs;
  options.step.seed = kSeed;
  options.step.clip_norm = kClip;
  options.step.optimizer.weight_decay = 0.01;
  options.step.learning_rate = {.kind = LearningRateKind::Cosine, .base = 3e-3, .warm_up = 3};
  return options;
}

/// One step of the plain loop; returns nothing, the stage's gradients are the result.
void accumulate(StageModule& model, Batch& batch, std::uint64_t step) {
  TensorPool pool;
  for (int i = 0; i < kMicroBatches; ++i) {
    const Unit unit{MicroBatch{i}, Slice{0}};
    const TensorList targets = batch.targets(unit);
    LossSum loss;
    PassContext context;
    context.seed = kSeed;
    context.step = step;
    context.micro_batch = unit.micro_batch;
    context.first_sample = batch.first_sample(unit);
    context.loss_scale = 1.0 / static_cast<double>(batch.samples());
    context.targets = &targets;
    context.loss = &loss;
    context.pool = &pool;
    model.forward(context, batch.inputs(unit));
    model.backward(context, {});
  }
}

std::string plain_loop_hash() {
  const ModelSpec spec = small_model();
  const std::vector<int> whole{0, spec.layer_count()};
  auto model = std::move(build_stages(spec, whole, kSeed).front());
  model->reserve(kMicroBatches, 1);
  const Dataset data = small_data();
  const TestOptions options = small_options();
  const auto optimizer = make_optimizer(options.step.optimizer);
  LearningRate rate = options.step.learning_rate;
  rate.total_updates = kEpochs * 4;

  std::vector<Parameter*> parameters = model->parameters();
  std::sort(parameters.begin(), parameters.end(), [](const Parameter* a, const Parameter* b) {
    return a->name < b->name;
  });
  std::vector<std::vector<std::vector<float>>> state;
  for (const Parameter* parameter : parameters)
    state.emplace_back(2, std::vector<float>(parameter->value.as<float>().size()));

  std::int64_t updates = 0;
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const auto order = shuffled_order(data.size(), kSeed, static_cast<std::uint64_t>(epoch));
    for (std::int64_t first = 0; first < data.size(); first += kBatch) {
      const auto last = std::min(first + kBatch, data.size());
      Batch batch;
      batch.fill(data, {order.data() + first, order.data() + last}, kMicroBatches);
      for (Parameter* parameter : parameters) parameter->gradient.fill_zero();
      accumulate(*model, batch, static_cast<std::uint64_t>(updates));

      std::vector<double> squares;
      for (const Parameter* parameter : parameters)
        squares.push_back(sum_of_squares(parameter->gradient.as<float>()));
      UpdateSettings settings;
      settings.number = updates + 1;
      settings.learning_rate = rate.at(updates);
      settings.gradient_factor = gradient_norm(squares, kClip).factor;
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        settings.decays = parameters[i]->decays;
        const std::vector<std::span<float>> slots{state[i][0], state[i][1]};
        optimizer->update(
            settings, parameters[i]->value.as<float>(), parameters[i]->gradient.as<float>(), slots);
      }
      ++updates;
    }
  }
  return weights_hash(parameters);
}

struct Variant {
  std::string schedule;
  int ranks;
  std::optional<int> chunks;
};

std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (const char* schedule : {"gpipe", "1f1b", "zb-h1"}) all.push_back({schedule, ranks, {}});
    all.push_back({"interleaved", ranks, 2});
  }
  return all;
}

class SameBits : public testing::TestWithParam<std::string> {};

TEST_P(SameBits, EqualThePlainLoop) {
  const std::string expected = plain_loop_hash();
  const Dataset data = small_data();
  for (const Variant& variant : variants())
    for (const bool recompute : {false, true}) {
      TestOptions options = small_options();
      options.run.executor = GetParam();
      options.pipeline.schedule = variant.schedule;
      options.pipeline.shape.ranks = variant.ranks;
      options.pipeline.shape.chunks = variant.chunks;
      if (recompute) options.run.recompute = {.kind = RecomputeKind::All};
      Trainer trainer(small_model(), options.pipeline, options);
      trainer.fit(data);

      EXPECT_EQ(trainer.weights_hash(), expected)
          << variant.schedule << " on " << variant.ranks << " ranks, recompute " << recompute;
      EXPECT_EQ(trainer.global_step(), 12);
    }
}

TEST_P(SameBits, AnyPartition_SameWeights) {
  const std::string expected = plain_loop_hash();
  const Dataset data = small_data();
  for (const int boundary : {1, 12, 6}) {
    TestOptions options = small_options();
    options.run.executor = GetParam();
    options.pipeline.shape.ranks = 2;
    options.pipeline.boundaries = {boundary};
    Trainer trainer(small_model(), options.pipeline, options);
    trainer.fit(data);

    EXPECT_EQ(trainer.weights_hash(), expected) << "cut at " << boundary;
  }
}

INSTANTIATE_TEST_SUITE_P(Executors,
                         SameBits,
                         testing::Values("sequential", "flow-graph", "ranks"),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST(SameBitsOracle, ChangesWithSeedDropoutAndMicroBatches) {
  const Dataset data = small_data();
  const auto hash_with = [&](auto change) {
    TestOptions options = small_options();
    options.run.executor = "sequential";
    std::string model = "mlp:64-24-10,dropout=0.1";
    options.pipeline.shape.ranks = 1;
    change(options, model);
    Trainer trainer(parse_model(model), options.pipeline, options);
    trainer.fit(data);
    return trainer.weights_hash();
  };
  const std::string base = hash_with([](TestOptions&, std::string&) {});

  EXPECT_EQ(hash_with([](TestOptions&, std::string&) {}), base);
  EXPECT_NE(hash_with([](TestOptions& options, std::string&) { options.step.seed = 8; }), base);
  EXPECT_NE(hash_with([](TestOptions& options, std::string&) { options.step.clip_norm = 0.4; }),
            base);
  EXPECT_NE(hash_with([](TestOptions&, std::string& model) { model = "mlp:64-24-10"; }), base);
  EXPECT_NE(hash_with([](TestOptions& options, std::string&) {
              options.fit.last_batch = LastBatch::Drop;
            }),
            base);
}

}  // namespace
}  // namespace millrace
