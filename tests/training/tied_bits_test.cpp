// Tied weights have the bits of a plain loop, whatever cuts them apart and whatever adds them up:
// every gradient accumulates for its own layer, and the sum over the layers is taken once, in f32,
// in the order of the layers. The loop is written out here, without program, executor or trainer.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/core/random.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/stages/models.hpp"
#include "millrace/stages/partition.hpp"
#include "millrace/training/optimizer.hpp"
#include "millrace/training/ranks.hpp"
#include "millrace/training/state.hpp"
#include "millrace/training/trainer.hpp"
#include "millrace/transport/in_process.hpp"
#include "millrace/transport/listener.hpp"
#include "millrace/transport/private_directory.hpp"
#include "millrace/transport/process_group.hpp"
#include "millrace/transport/zeromq.hpp"
#include "support/test_options.hpp"

namespace millrace {
namespace {

constexpr int kTiedMicroBatches = 4;
constexpr int kTiedSteps = 4;
constexpr std::uint64_t kSeed = 5;
const char* const kTiedModel = "mlp:8-8-8-8-8";
// As a user may name them; the first lends its value, the sum is taken in the order of the layers.
const std::vector<std::string> kTied = {"layers.3.weight", "layers.0.weight", "layers.2.weight"};
const std::vector<std::string> kInOrder = {"layers.0.weight", "layers.2.weight", "layers.3.weight"};

/// 21 samples: micro-batches of 6, 5, 5 and 5.
Dataset noise() {
  Tensor features(DType::F32, {21, 8});
  Tensor targets(DType::I32, {21});
  for (std::size_t i = 0; i < 21 * 8; ++i)
    features.as<float>()[i] = static_cast<float>(
        random_uniform({.seed = 9, .layer = 1}, static_cast<std::uint32_t>(i)) * 2 - 1);
  for (std::size_t i = 0; i < 21; ++i)
    targets.as<std::int32_t>()[i] = static_cast<std::int32_t>(i * 5 % 8);
  return make_dataset("noise", std::move(features), std::move(targets), 8);
}

TestOptions options_of(const std::string& executor) {
  TestOptions options;
  options.pipeline.shape.micro_batches = kTiedMicroBatches;
  options.run.executor = executor;
  options.step.seed = kSeed;
  options.step.clip_norm = 0.3;
  options.step.learning_rate.base = 0.05;
  options.step.tied = {kTied};
  options.run.deadline = std::chrono::seconds(60);
  return options;
}

std::string learn(Trainer& trainer) {
  Batch batch(noise(), kTiedMicroBatches);
  for (int step = 0; step < kTiedSteps; ++step) trainer.step(batch);
  return trainer.weights_hash();
}

/// The whole model in one piece, its parameters by name.
class PlainLoop {
 public:
  PlainLoop() : model_(std::move(build_stages(spec_, {{0, spec_.layer_count()}}, kSeed).front())) {
    model_->reserve(kTiedMicroBatches, 1);
    parameters_ = model_->parameters();
    std::ranges::sort(parameters_, {}, [](const Parameter* each) { return each->name; });
    for (const std::string& name : kTied)
      std::ranges::copy(named(kTied.front()).value.as<float>(),
                        named(name).value.as<float>().begin());
  }

  Parameter& named(const std::string& name) {
    return **std::ranges::find(parameters_, name, [](const Parameter* each) { return each->name; });
  }

  /// Gradients of the mean loss of these micro-batches, each layer's its own; the loss is given.
  double accumulate(std::uint64_t step, const std::vector<int>& micro_batches = {0, 1, 2, 3}) {
    Batch batch(noise(), kTiedMicroBatches);
    LossSum loss;
    TensorPool pool;
    for (Parameter* parameter : parameters_) parameter->gradient.fill_zero();
    for (const int i : micro_batches) {
      const Unit unit{MicroBatch{i}, Slice{0}};
      const TensorList targets = batch.targets(unit);
      PassContext context;
      context.seed = kSeed;
      context.step = step;
      context.micro_batch = unit.micro_batch;
      context.first_sample = batch.first_sample(unit);
      context.loss_scale = 1.0 / static_cast<double>(batch.samples());
      context.targets = &targets;
      context.loss = &loss;
      context.pool = &pool;
      model_->forward(context, batch.inputs(unit));
      model_->backward(context, {});
    }
    return loss.sum / loss.weight;
  }

  /// ((g0 + g2) + g3), in f32.
  void add_tied() {
    const auto first = named(kInOrder[0]).gradient.as<float>();
    std::vector<float> sum(first.begin(), first.end());
    for (const std::string& name : {kInOrder[1], kInOrder[2]}) {
      const auto term = named(name).gradient.as<float>();
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += term[i];
    }
    for (const std::string& name : kInOrder)
      std::ranges::copy(sum, named(name).gradient.as<float>().begin());
  }

  std::string learn() {
    const TestOptions options = options_of("sequential");
    const auto optimizer = make_optimizer(options.step.optimizer);
    std::vector<std::vector<std::vector<float>>> state;
    for (const Parameter* parameter : parameters_)
      state.emplace_back(2, std::vector<float>(parameter->value.as<float>().size()));
    for (int step = 0; step < kTiedSteps; ++step) {
      accumulate(static_cast<std::uint64_t>(step));
      add_tied();
      std::vector<double> squares;
      for (const Parameter* parameter : parameters_)  // a tied weight counts once
        if (parameter->name != kInOrder[1] && parameter->name != kInOrder[2])
          squares.push_back(sum_of_squares(parameter->gradient.as<float>()));
      UpdateSettings settings{.number = step + 1, .learning_rate = options.step.learning_rate.base};
      settings.gradient_factor = gradient_norm(squares, options.step.clip_norm).factor;
      for (std::size_t i = 0; i < parameters_.size(); ++i) {
        Parameter& parameter = *parameters_[i];
        settings.decays = parameter.decays;
        const std::vector<std::span<float>> slots{state[i][0], state[i][1]};
        optimizer->update(
            settings, parameter.value.as<float>(), parameter.gradient.as<float>(), slots);
      }
    }
    return weights_hash(parameters_);
  }

 private:
  ModelSpec spec_ = parse_model(kTiedModel);
  std::unique_ptr<StageModule> model_;
  std::vector<Parameter*> parameters_;
};

/// Every way to cut the four layers into consecutive stages.
std::vector<std::vector<int>> all_cuts() {
  std::vector<std::vector<int>> cuts;
  for (unsigned where = 0; where < 8; ++where) {
    cuts.push_back({0});
    for (int layer = 1; layer < 4; ++layer)
      if ((where >> static_cast<unsigned>(layer - 1) & 1U) != 0) cuts.back().push_back(layer);
    cuts.back().push_back(4);
  }
  return cuts;
}

class TiedBits : public testing::TestWithParam<std::string> {};

TEST_P(TiedBits, EveryPartition_PlainLoopBits) {
  const std::string expected = PlainLoop().learn();
  for (const char* schedule : {"1f1b", "gpipe", "zb-h1"})
    for (const std::vector<int>& cut : all_cuts()) {
      TestOptions options = options_of(GetParam());
      options.pipeline.schedule = schedule;
      options.pipeline.shape.ranks = static_cast<int>(cut.size()) - 1;
      options.pipeline.boundaries = {cut.begin() + 1, cut.end() - 1};
      Trainer trainer(parse_model(kTiedModel), options.pipeline, options);
      EXPECT_EQ(learn(trainer), expected) << schedule << ' ' << testing::PrintToString(cut);
    }
}

TEST_P(TiedBits, TiedStagesOnOneRank_PlainLoopBits) {
  const std::string expected = PlainLoop().learn();
  for (const char* schedule : {"interleaved", "zb-v"}) {
    TestOptions options = options_of(GetParam());
    options.pipeline.schedule = schedule;
    options.pipeline.shape.ranks = 2;
    options.pipeline.shape.chunks = 2;
    Trainer trainer(parse_model(kTiedModel), options.pipeline, options);
    EXPECT_EQ(learn(trainer), expected) << schedule;
  }
}

TEST_P(TiedBits, OfABidirectionalScheduleAddReplicasBeforeTies) {
  std::string expected;
  for (const int cut : {1, 2, 3}) {
    TestOptions options = options_of(GetParam());
    options.pipeline.schedule = "chimera";
    options.pipeline.shape.ranks = 2;
    options.pipeline.boundaries = {cut};
    Trainer trainer(parse_model(kTiedModel), options.pipeline, options);
    const std::string hash = learn(trainer);
    if (expected.empty()) expected = hash;
    EXPECT_EQ(hash, expected) << cut;
  }
}

INSTANTIATE_TEST_SUITE_P(Executors,
                         TiedBits,
                         testing::Values("sequential", "flow-graph", "ranks"),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

using MakeEndpoint = std::function<std::unique_ptr<Endpoint>(Rank, const Program&)>;

/// The hash that every rank of a training knows at its end, each rank a thread with its own
/// trainer.
std::vector<std::string> learn_on_ranks(const std::vector<int>& cut,
                                        const std::string& schedule,
                                        const MakeEndpoint& endpoint_of) {
  const int ranks = static_cast<int>(cut.size()) - 1;
  TestOptions options = options_of("ranks");
  options.pipeline.boundaries = {cut.begin() + 1, cut.end() - 1};
  const Program program = generate(schedule, {.ranks = ranks, .micro_batches = kTiedMicroBatches});
  std::vector<std::string> hashes(static_cast<std::size_t>(ranks));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      const auto endpoint = endpoint_of(Rank{rank}, program);
      try {
        ProcessGroup group(*endpoint, std::chrono::seconds(60));
        Trainer trainer(rank_parts(parse_model(kTiedModel),
                                   {program, options.pipeline.boundaries},
                                   options,
                                   *endpoint,
                                   group));
        hashes[static_cast<std::size_t>(rank)] = learn(trainer);
        endpoint->leave(std::chrono::steady_clock::now() + std::chrono::seconds(60));
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
        endpoint->cancel(error.what());
      }
    });
  threads.clear();
  return hashes;
}

TEST(TiedBitsOfProcesses, EveryPartition_PlainLoopBits) {
  const std::string expected = PlainLoop().learn();
  for (const std::vector<int>& cut : all_cuts()) {
    InProcessHub hub(static_cast<int>(cut.size()) - 1);
    for (const std::string& hash :
         learn_on_ranks(cut, "1f1b", [&](Rank rank, const Program&) { return hub.endpoint(rank); }))
      EXPECT_EQ(hash, expected) << testing::PrintToString(cut);
  }
}

TEST(TiedBitsOfProcesses, BidirectionalSchedule_SameBits) {
  for (const int cut : {1, 3}) {
    TestOptions options = options_of("sequential");
    options.pipeline.schedule = "chimera";
    options.pipeline.shape.ranks = 2;
    options.pipeline.boundaries = {cut};
    Trainer trainer(parse_model(kTiedModel), options.pipeline, options);
    const std::string expected = learn(trainer);
    InProcessHub hub(2);
    for (const std::string& hash : learn_on_ranks(
             {0, cut, 4}, "chimera", [&](Rank rank, const Program&) { return hub.endpoint(rank); }))
      EXPECT_EQ(hash, expected) << cut;
  }
}

TEST(TiedBitsOfProcesses, OverZeroMq_PlainLoopBits) {
  const std::string expected = PlainLoop().learn();
  for (const std::vector<int>& cut : all_cuts()) {
    if (cut.size() == 2) continue;  // one rank meets nobody
    const PrivateDirectory directory(std::filesystem::temp_directory_path());
    const auto context = std::make_shared<ZeroMqContext>();
    const auto meeting = [&](Rank rank, const Program& program) {
      ZeroMqOptions options;
      options.rank = rank;
      options.world = program.shape.ranks;
      options.directory = directory.path();
      options.depths = channel_depths(program);
      return meet({.url = "ipc://" + directory.path() + "/rendezvous"},
                  ZeroMqListener(options, context));
    };
    for (const std::string& hash : learn_on_ranks(cut, "1f1b", meeting))
      EXPECT_EQ(hash, expected) << testing::PrintToString(cut);
  }
}

std::vector<float> gradient_of(std::span<Parameter* const> parameters, const std::string& name) {
  for (const Parameter* parameter : parameters)
    if (parameter->name == name)
      return {parameter->gradient.as<float>().begin(), parameter->gradient.as<float>().end()};
  return {};
}

TEST(TiedGradient, SumsReplicasThenLayers) {
  TestOptions options = options_of("sequential");
  options.pipeline.schedule = "chimera";
  options.pipeline.shape.ranks = 2;
  Trainer trainer(parse_model(kTiedModel), options.pipeline, options);
  std::vector<std::vector<int>> of_replica(2);
  for (int i = 0; i < kTiedMicroBatches; ++i)
    of_replica[trainer.executor().program().shape.replica(MicroBatch{i}).index()].push_back(i);
  ASSERT_EQ(of_replica[0].size(), 2U);  // the sum of two terms has one order

  PlainLoop loop;
  std::vector<std::vector<float>> of_layer(3);
  for (const auto& micro_batches : of_replica) {
    loop.accumulate(0, micro_batches);
    for (std::size_t layer = 0; layer < 3; ++layer) {
      const auto term = loop.named(kInOrder[layer]).gradient.as<float>();
      of_layer[layer].resize(term.size());
      for (std::size_t i = 0; i < term.size(); ++i) of_layer[layer][i] += term[i];
    }
  }
  std::vector<float> expected = of_layer[0];
  for (const std::size_t layer : {1U, 2U})
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += of_layer[layer][i];

  std::vector<std::vector<float>> gradients;
  trainer.before_update = [&](std::span<Parameter* const> parameters) {
    for (const std::string& name : kTied) gradients.push_back(gradient_of(parameters, name));
  };
  Batch batch(noise(), kTiedMicroBatches);
  trainer.step(batch);
  for (const auto& gradient : gradients) EXPECT_EQ(gradient, expected);
}

TEST(TiedGradient, IsTheLossDerivative) {
  PlainLoop loop;
  TestOptions options = options_of("sequential");
  options.pipeline.shape.ranks = 4;
  Trainer trainer(parse_model(kTiedModel), options.pipeline, options);
  std::vector<float> gradient;
  trainer.before_update = [&](std::span<Parameter* const> parameters) {
    gradient = gradient_of(parameters, kInOrder[0]);
  };
  Batch batch(noise(), kTiedMicroBatches);
  trainer.step(batch);

  constexpr double kStep = 1e-2;
  for (const std::size_t element : {0U, 9U, 27U, 40U, 63U}) {
    const auto loss_at = [&](double change) {
      const float before = loop.named(kInOrder[0]).value.as<float>()[element];
      const auto set = [&](float value) {
        for (const std::string& name : kTied) loop.named(name).value.as<float>()[element] = value;
      };
      set(static_cast<float>(static_cast<double>(before) + change));
      const double loss = loop.accumulate(0);
      set(before);
      return loss;
    };
    const double slope = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
    EXPECT_NEAR(static_cast<double>(gradient[element]), slope, 2e-3) << element;
  }
}

}  // namespace
}  // namespace millrace
