// How much of the matrix-product time do stages reach? One micro-batch of 784-512-512-10 through
// forward and backward of a stage module, next to the same products called back to back in Eigen
// (the floor: no bias, no activation, no loss, no stash).
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include <Eigen/Core>
#include <benchmark/benchmark.h>

#include "millrace/core/random.hpp"
#include "millrace/stages/models.hpp"
#include "millrace/stages/partition.hpp"

namespace {

using millrace::DType;
using millrace::Tensor;
using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr std::array<std::int64_t, 4> kWidths{784, 512, 512, 10};

/// Multiply-adds of one forward and backward, times two; the first layer has no input gradient.
double operations(std::int64_t rows) {
  double sum = 0;
  for (std::size_t i = 0; i + 1 < kWidths.size(); ++i)
    sum += (i == 0 ? 4.0 : 6.0) * static_cast<double>(rows * kWidths[i] * kWidths[i + 1]);
  return sum;
}

void report(benchmark::State& state) {
  const std::int64_t rows = state.range(0);
  state.counters["flops"] =
      benchmark::Counter(operations(rows), benchmark::Counter::kIsIterationInvariantRate);
  state.counters["samples_per_second"] =
      benchmark::Counter(static_cast<double>(rows), benchmark::Counter::kIsIterationInvariantRate);
}

struct LinearProducts {
  LinearProducts(std::int64_t rows, std::int64_t in, std::int64_t out)
      : x(Matrix::Random(rows, in)),
        w(Matrix::Random(in, out)),
        y(rows, out),
        dy(Matrix::Random(rows, out)),
        dx(rows, in),
        dw(Matrix::Zero(in, out)) {}

  Matrix x, w, y, dy, dx, dw;
};

void floor_of_products(benchmark::State& state) {
  std::vector<LinearProducts> layers;
  for (std::size_t i = 0; i + 1 < kWidths.size(); ++i)
    layers.emplace_back(state.range(0), kWidths[i], kWidths[i + 1]);
  for (auto _ : state) {
    for (auto& layer : layers) layer.y.noalias() = layer.x * layer.w;
    for (std::size_t i = layers.size(); i-- > 0;) {
      LinearProducts& layer = layers[i];
      if (i > 0) layer.dx.noalias() = layer.dy * layer.w.transpose();
      layer.dw.noalias() += layer.x.transpose() * layer.dy;
    }
    benchmark::ClobberMemory();
  }
  report(state);
}

/// A stage with everything one micro-batch needs.
class Step {
 public:
  explicit Step(std::int64_t rows)
      : input_(DType::F32, {rows, kWidths.front()}), labels_(DType::I32, {rows}) {
    const auto model = millrace::parse_model("mlp:784-512-512-10");
    stages_ = millrace::build_stages(model, millrace::even_boundaries(model.layer_count(), 1), 1);
    const millrace::RandomKey key{.seed = 1};
    auto values = input_.as<float>();
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(millrace::random_uniform(key, static_cast<std::uint32_t>(i)));
    for (std::size_t i = 0; i < labels_.as<std::int32_t>().size(); ++i)
      labels_.as<std::int32_t>()[i] = static_cast<std::int32_t>(i % 10);
    targets_.push_back(std::move(labels_));
  }

  millrace::LossSum run() {
    millrace::LossSum loss;
    millrace::PassContext context;
    context.loss_scale = 1.0 / static_cast<double>(input_.rows());
    context.targets = &targets_;
    context.loss = &loss;
    context.pool = &pool_;
    (void)stages_[0]->forward(context, millrace::TensorList(input_.borrow_rows(0, input_.rows())));
    (void)stages_[0]->backward(context, {});
    return loss;
  }

  [[nodiscard]] std::size_t blocks() const { return pool_.blocks_allocated(); }

 private:
  millrace::TensorPool pool_;
  Tensor input_;
  Tensor labels_;
  millrace::TensorList targets_;
  std::vector<std::unique_ptr<millrace::StageModule>> stages_;
};

void stage_module(benchmark::State& state) {
  Step step(state.range(0));
  const double first = step.run().sum;
  const std::size_t blocks = step.blocks();
  if (!std::isfinite(first) || first != step.run().sum)
    state.SkipWithError("two runs on the same weights gave different losses");
  for (auto _ : state) benchmark::DoNotOptimize(step.run());
  if (step.blocks() != blocks) state.SkipWithError("a steady step took memory from the system");
  report(state);
}

BENCHMARK(floor_of_products)->Name("floor")->ArgName("rows")->Arg(8)->Arg(128)->UseRealTime();
BENCHMARK(stage_module)->Name("stage")->ArgName("rows")->Arg(8)->Arg(128)->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
