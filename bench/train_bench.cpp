// What does a training step cost beyond its matrix products, and what does a second stage bring?
// Steps of 784-512-512-10 (SGD, flow graph) next to the same products called back to back in Eigen,
// micro-batch by micro-batch, in one thread (the floor).
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include <Eigen/Core>
#include <benchmark/benchmark.h>

#include "millrace/core/random.hpp"
#include "millrace/training/records.hpp"
#include "millrace/training/trainer.hpp"

namespace {

using namespace millrace;
using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr std::array<std::int64_t, 4> kWidths{784, 512, 512, 10};

void count_samples(benchmark::State& state) {
  state.counters["samples_per_second"] = benchmark::Counter(
      static_cast<double>(state.range(0)), benchmark::Counter::kIsIterationInvariantRate);
}

Dataset noise(std::int64_t n) {
  Dataset data = make_dataset(
      "noise", Tensor(DType::F32, {n, kWidths.front()}), Tensor(DType::I32, {n}), kWidths.back());
  const auto features = data.inputs[0].values.as<float>();
  for (std::size_t i = 0; i < features.size(); ++i)
    features[i] = static_cast<float>(random_uniform({.seed = 5}, static_cast<std::uint32_t>(i)));
  const auto targets = data.targets[0].values.as<std::int32_t>();
  for (std::size_t i = 0; i < targets.size(); ++i) targets[i] = static_cast<std::int32_t>(i % 10);
  return data;
}

/// The products of one linear map on one micro-batch.
struct LinearProducts {
  LinearProducts(std::int64_t rows, std::int64_t in, std::int64_t out)
      : x(Matrix::Random(rows, in)), y(rows, out), dy(Matrix::Random(rows, out)), dx(rows, in) {}

  Matrix x, y, dy, dx;
};

/// Arguments: mini-batch, micro-batches.
void floor_of_products(benchmark::State& state) {
  const std::int64_t rows = state.range(0) / state.range(1);
  std::vector<Matrix> weights, gradients;
  std::vector<LinearProducts> layers;
  for (std::size_t i = 0; i + 1 < kWidths.size(); ++i) {
    weights.emplace_back(Matrix::Random(kWidths[i], kWidths[i + 1]));
    gradients.emplace_back(Matrix::Zero(kWidths[i], kWidths[i + 1]));
    layers.emplace_back(rows, kWidths[i], kWidths[i + 1]);
  }
  for (auto _ : state)
    for (std::int64_t micro_batch = 0; micro_batch < state.range(1); ++micro_batch) {
      for (std::size_t i = 0; i < layers.size(); ++i)
        layers[i].y.noalias() = layers[i].x * weights[i];
      for (std::size_t i = layers.size(); i-- > 0;) {
        if (i > 0) layers[i].dx.noalias() = layers[i].dy * weights[i].transpose();
        gradients[i].noalias() += layers[i].x.transpose() * layers[i].dy;
      }
      benchmark::ClobberMemory();
    }
  count_samples(state);
}

/// Arguments: mini-batch, micro-batches, stages. Two stages are cut after the first layer: that
/// is two products of 784 x 512 against three of 512 x 512, as even as whole layers allow.
void training_step(benchmark::State& state) {
  TrainerOptions options;
  PipelineOptions pipeline;
  pipeline.shape.micro_batches = static_cast<int>(state.range(1));
  pipeline.shape.ranks = static_cast<int>(state.range(2));
  options.step.optimizer.kind = OptimizerKind::Sgd;
  options.step.learning_rate.base = 1e-3;
  if (pipeline.shape.ranks == 2) pipeline.boundaries = {1};
  if (pipeline.shape.ranks == 1) options.run.executor = "sequential";
  Trainer trainer(parse_model("mlp:784-512-512-10"), pipeline, options);
  const Dataset data = noise(state.range(0));
  Batch batch(data, pipeline.shape.micro_batches);
  Profile profile(trainer.executor().program());
  if (!std::isfinite(trainer.step(batch).mean_loss()))
    state.SkipWithError("the loss is not finite");
  for (auto _ : state) {
    const StepReport report = trainer.step(batch);
    benchmark::DoNotOptimize(report.loss.sum);
    profile.add(trainer.executor().timeline());
  }
  count_samples(state);
  state.counters["bubble"] = profile.use().bubble();
}

}  // namespace

BENCHMARK(floor_of_products)
    ->ArgNames({"batch", "m"})
    ->Args({32, 4})
    ->Args({512, 4})
    ->Args({512, 16})
    ->UseRealTime();
BENCHMARK(training_step)
    ->ArgNames({"batch", "m", "stages"})
    ->Args({32, 4, 1})
    ->Args({32, 4, 2})
    ->Args({512, 4, 1})
    ->Args({512, 4, 2})
    ->Args({512, 16, 1})
    ->Args({512, 16, 2})
    ->UseRealTime();

BENCHMARK_MAIN();
