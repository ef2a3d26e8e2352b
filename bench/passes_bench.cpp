// Where does a transformer's step go, and how far is each pass from its floor? The step of the GPT
// that against_pytorch.py trains, in one stage, with a clock around every pass of every layer; each
// line is one kind of pass, summed over blocks and micro-batches. The floor of a pass is the larger
// of its operations by the rate of one core's products and the bytes that it cannot do without by
// the rate of a plain triad over memory; `share` is floor by time, `of_step` time by step.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "bench/timed_layer.hpp"
#include "millrace/core/random.hpp"
#include "millrace/training/optimizer.hpp"
#include "millrace/training/trainer.hpp"
#include "stages/kernels/attention.hpp"
#include "stages/kernels/product.hpp"

namespace {

using namespace millrace;
using bench::kBetween;
using bench::now;
using bench::Pass;
using bench::Passes;
using bench::TimedLayer;

constexpr const char* kModel = "gpt:layers=8,d=256,heads=8,context=128,vocabulary=96";
constexpr std::int64_t kSamples = 32, kContext = 128, kWords = 96, kBlocks = 8, kHeads = 8;
constexpr int kMicroBatches = 8;
constexpr int kSteps = 7;

// Passes that no layer has: next to them, and two that are in those of attention.
constexpr const char* kLoss = "F loss and its gradient";
constexpr const char* kNorm = "update: norm of the gradient";
constexpr const char* kUpdate = "update: AdamW";
constexpr const char* kSoftmax = "in attention's F, and again in its I: softmax";
constexpr const char* kScores = "in attention's I: gradients of scores";

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

/// Median seconds of `body`.
template <class Body>
double timed(int times, const Body& body) {
  std::vector<double> seconds;
  for (int i = 0; i < times; ++i) {
    const double began = now();
    body();
    seconds.push_back(now() - began);
  }
  return median(std::move(seconds));
}

ModelSpec timed_model(DType precision, Passes& passes) {
  ModelSpec model = parse_model(kModel);
  model.precision = precision;
  for (const LayerKind& kind : layer_kinds())
    model.kinds.push_back(
        {"timed " + kind.name,
         kind.settings,
         [kind, precision, &passes](const LayerSettings& settings,
                                    std::span<const TensorType> inputs,
                                    const LayerPlace& place) -> std::unique_ptr<Layer> {
           auto layer = kind.make(settings, inputs, place);
           layer->hold_in(place.precision);
           const bool wanted = std::ranges::any_of(inputs, &TensorType::has_gradient);
           return std::make_unique<TimedLayer>(
               std::move(layer), kind.name, wanted, precision != DType::F32, passes);
         }});
  for (LayerSpec& layer : model.layers) layer.kind = "timed " + layer.kind;
  return model;
}

Dataset windows() {
  Dataset data;
  data.name = "windows";
  Tensor tokens(DType::I32, {kSamples, kContext}), next(DType::I32, {kSamples, kContext});
  for (std::uint32_t i = 0; Tensor * tensor : {&tokens, &next})
    for (std::int32_t& token : tensor->as<std::int32_t>())
      token = static_cast<std::int32_t>(random_uniform({.seed = 1}, i++) * kWords);
  data.inputs.push_back({"tokens", std::move(tokens), true});
  data.targets.push_back({"next", std::move(next), true});
  data.classes = kWords;
  return data;
}

/// Bytes per second of a[i] = b[i] + c c[i], walked through more memory than the caches have.
double memory_rate() {
  constexpr std::size_t kCount = std::size_t{1} << 24U;
  std::vector<float> a(kCount), b(kCount, 1), c(kCount, 2);
  const double seconds = timed(5, [&] {
    for (std::size_t i = 0; i < kCount; ++i) a[i] = b[i] + 3 * c[i];
    benchmark::ClobberMemory();
  });
  return 3 * sizeof(float) * static_cast<double>(kCount) / seconds;
}

/// Operations per second of one core, by a large product.
double rate_of_products(DType precision) {
  constexpr std::int64_t kExtent = 512;
  constexpr std::size_t kCount = kExtent * kExtent;
  Tensor a(DType::F32, {kExtent, kExtent}), b(a.dtype(), a.dims()), c(a.dtype(), a.dims());
  for (Tensor* tensor : {&a, &b, &c}) std::ranges::fill(tensor->as<float>(), 0.5F);
  TensorPool pool;
  PassContext context;
  context.pool = &pool;
  const double seconds = timed(20, [&] {
    add_forward<float>(context,
                       {kExtent, kExtent, kExtent, precision},
                       a.as<float>().data(),
                       b.as<float>().data(),
                       c.as<float>().data());
  });
  return 2.0 * kCount * kExtent / seconds;
}

/// What the step does next to the passes of layers, each alone: the loss, the norm, the update.
void add_others(Passes& passes, std::int64_t parameters) {
  const std::int64_t rows = kSamples / kMicroBatches * kContext;
  Tensor logits(DType::F32, {rows, kWords});
  std::ranges::fill(logits.as<float>(), 0.5F);
  Tensor classes(DType::I32, {rows});
  classes.fill_zero();
  const TensorList targets(std::move(classes));
  TensorPool pool;
  PassContext context;
  context.pool = &pool;
  const SoftmaxCrossEntropy loss;
  passes[kLoss] = {
      0,
      2.0 * kMicroBatches * static_cast<double>(logits.bytes()),
      kMicroBatches * timed(20, [&] { (void)loss.measure(context, logits, targets); })};

  const auto count = static_cast<std::size_t>(parameters);
  std::vector<float> value(count, 1), gradient(count), first(count), second(count);
  const double bytes = sizeof(float) * static_cast<double>(count);
  passes[kNorm] = {0, bytes, timed(5, [&] { benchmark::DoNotOptimize(sum_of_squares(gradient)); })};
  const auto adamw = make_optimizer({.weight_decay = 0.1});
  const std::vector<std::span<float>> slots{first, second};
  passes[kUpdate] = {0, 8 * bytes, timed(5, [&] {
                       apply(*adamw, {.learning_rate = 1e-3}, value, gradient, slots);
                     })};
}

/// The softmax inside attention's passes, and the gradients of its scores, alone.
void add_softmax(Passes& passes) {
  const std::int64_t rows = kQueryBlock;
  std::vector<float> shares(static_cast<std::size_t>(rows * kContext), 0.5F);
  std::vector<float> scores(shares);
  const double heads = static_cast<double>(kSamples * kHeads * kBlocks);
  Pass forward, backward;
  for (std::int64_t keys = rows; keys <= kContext; keys += rows) {
    const double bytes = heads * sizeof(float) * static_cast<double>(rows * keys);
    forward += {0, 2 * bytes, heads * timed(50, [&] {
                                for (std::int64_t i = 0; i < rows; ++i)
                                  soften(shares.data() + i * keys, keys - rows + i + 1, keys);
                              })};
    backward += {0,
                 3 * bytes,
                 heads * timed(50, [&] {
                   score_gradients(QueryBlock{0, rows, keys}, 32, shares.data(), scores.data());
                 })};
  }
  passes[kSoftmax] = forward;
  passes[kScores] = backward;
}

/// Of the residuals: two gradients of one tensor added, a third written.
constexpr double kBytesOfSums = 3.0 * 2 * kBlocks * kSamples * kContext * 256 * sizeof(float);

/// Everything that is measured of a step.
struct Measured {
  Passes passes;
  double step = 0;
  double products = 0, memory = 0;  // rates
};

double all_seconds(const Passes& passes) {
  double sum = 0;
  for (const auto& [name, pass] : passes) sum += pass.seconds;
  return sum;
}

Passes medians(const std::vector<Passes>& steps) {
  Passes all = steps.front();
  for (auto& [name, pass] : all) {
    std::vector<double> seconds;
    for (const Passes& step : steps) seconds.push_back(step.at(name).seconds);
    pass.seconds = median(std::move(seconds));
  }
  return all;
}

Measured measure(DType precision) {
  Passes passes;
  TrainerOptions options;
  options.run.executor = "sequential";
  options.step.optimizer.weight_decay = 0.1;
  options.step.clip_norm = 1;
  Trainer trainer(timed_model(precision, passes),
                  {.shape = {.ranks = 1, .micro_batches = kMicroBatches}},
                  options);
  const Dataset data = windows();
  Batch batch(data, kMicroBatches);
  std::vector<Passes> steps;
  std::vector<double> seconds;
  for (int i = -2; i < kSteps; ++i) {  // the first two pay for memory
    for (auto& [name, pass] : passes) pass = {};
    const double began = now();
    trainer.step(batch);
    if (i < 0) continue;
    seconds.push_back(now() - began);
    steps.push_back(passes);
  }
  Measured measured{medians(steps), median(seconds), rate_of_products(precision), memory_rate()};
  std::int64_t parameters = 0;
  for (const Parameter* parameter : trainer.state().parameters())
    parameters += parameter->value.elements();
  add_others(measured.passes, parameters);
  measured.passes[kBetween] += {0, kBytesOfSums, measured.step - all_seconds(measured.passes)};
  add_softmax(measured.passes);
  return measured;
}

const Measured& measured(DType precision) {
  static std::map<DType, Measured> all;
  if (!all.contains(precision)) all.emplace(precision, measure(precision));
  return all.at(precision);
}

void report(benchmark::State& state, DType precision, const std::string& name) {
  const Measured& of = measured(precision);
  if (name.empty()) {
    for (auto _ : state) state.SetIterationTime(of.step);
    state.counters["products_per_second"] = of.products;
    state.counters["memory_bytes_per_second"] = of.memory;
    return;
  }
  const Pass& pass = of.passes.at(name);
  for (auto _ : state) state.SetIterationTime(pass.seconds);
  state.counters["operations"] = pass.operations;
  state.counters["bytes"] = pass.bytes;
  state.counters["share"] =
      std::max(pass.operations / of.products, pass.bytes / of.memory) / pass.seconds;
  state.counters["of_step"] = pass.seconds / of.step;
}

/// Of all passes; known without a step.
std::vector<std::string> names() {
  Passes passes;
  const ModelSpec model = timed_model(DType::F32, passes);
  (void)stage_without_parameters(model, std::vector<int>{0, model.layer_count()}, 0);
  for (const char* name : {kLoss, kNorm, kUpdate, kBetween, kSoftmax, kScores}) passes[name];
  std::vector<std::string> all;
  for (const auto& [name, pass] : passes) all.push_back(name);
  return all;
}

void add(DType precision, const std::string& title, const std::string& pass) {
  benchmark::RegisterBenchmark((std::string("passes/") + name_of(precision) + "/" + title).c_str(),
                               [=](benchmark::State& state) { report(state, precision, pass); })
      ->Iterations(1)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

}  // namespace

int main(int argc, char** argv) {
  for (const DType precision : {DType::F32, DType::BF16}) {
    add(precision, "step", "");
    for (const std::string& name : names()) add(precision, name, name);
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
