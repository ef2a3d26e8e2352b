// How long do the matrix products of a transformer's step take alone, and how fast does this
// machine multiply? The products of the GPT that against_pytorch.py trains, micro-batch by
// micro-batch in two threads that have half of the blocks each, every shape by the library that is
// fastest at it (the floor of a step in two stages); and one large product by every library on one
// core and on two.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <future>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "stages/kernels/backends.hpp"

namespace {

using millrace::DType;
using millrace::Gemm;
using millrace::PassContext;
using millrace::ProductShape;
using millrace::Tensor;

constexpr int kBlocks = 8;
constexpr std::int64_t kWidth = 256, kHeads = 8, kContext = 128, kWords = 96;
constexpr int kMicroBatches = 8;
constexpr std::int64_t kSamples = 4;      // of a micro-batch
constexpr std::int64_t kQueryBlock = 64;  // queries that attention handles together
constexpr std::int64_t kRows = kSamples * kContext;
constexpr std::int64_t kHeadColumns = kWidth / kHeads;

using Multiply = void (*)(const PassContext&, const Gemm&, const float*, const float*, float*);

/// What multiplies in f32, and in bf16 with the rounding of the factors.
std::map<std::string, Multiply> libraries(DType precision) {
  using namespace millrace;
  if (precision == DType::BF16) return {{"chosen", multiply<float>}};
  std::map<std::string, Multiply> all{{"eigen", eigen::multiply<float>}};
  if constexpr (kOneDnn) all["onednn"] = onednn::multiply;
  return all;
}

Tensor filled(std::int64_t count) {
  Tensor tensor(DType::F32, {count});
  float value = 0;
  for (float& element : tensor.as<float>()) element = (value = value < 1 ? value + 0.01F : -1);
  return tensor;
}

/// Factors and sum of a product.
struct Operands {
  explicit Operands(const Gemm& product)
      : a(filled(product.rows * product.depth)),
        b(filled(product.depth * product.columns)),
        c(filled(product.rows * product.columns)) {}

  Tensor a, b, c;
};

/// A core's own memory for packing, and what it multiplies by.
class Multiplier {
 public:
  explicit Multiplier(DType precision) : precision_(precision) { context_.pool = &pool_; }

  /// By the library that is fastest at the shape.
  void multiply(Gemm product, Operands& operands) {
    product.factors = precision_;
    fastest(product)(context_,
                     product,
                     operands.a.as<float>().data(),
                     operands.b.as<float>().data(),
                     operands.c.as<float>().data());
  }

 private:
  Multiply fastest(const Gemm& product) {
    const auto key = std::tuple(
        product.rows, product.columns, product.depth, product.a_transposed, product.b_transposed);
    const auto known = fastest_.find(key);
    if (known != fastest_.end()) return known->second;
    Multiply best = nullptr;
    double least = std::numeric_limits<double>::infinity();
    for (const auto& [name, library] : libraries(precision_))
      if (const double seconds = seconds_of(product, library); seconds < least) {
        least = seconds;
        best = library;
      }
    return fastest_[key] = best;
  }

  double seconds_of(const Gemm& product, Multiply library) {
    Operands operands(product);
    double least = std::numeric_limits<double>::infinity();
    for (int i = 0; i < 10; ++i) {
      const auto began = std::chrono::steady_clock::now();
      library(context_,
              product,
              operands.a.as<float>().data(),
              operands.b.as<float>().data(),
              operands.c.as<float>().data());
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - began;
      least = std::min(least, taken.count());
    }
    return least;
  }

  DType precision_;
  millrace::TensorPool pool_;
  PassContext context_;
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t, bool, bool>, Multiply> fastest_;
};

/// The three products of a linear map, each with operands of its own.
class LinearMap {
 public:
  LinearMap(std::int64_t in, std::int64_t out)
      : forward_{.rows = kRows, .columns = out, .depth = in},
        input_{
            .rows = kRows, .columns = in, .depth = out, .b_transposed = true, .accumulate = false},
        weight_{.rows = in, .columns = out, .depth = kRows, .a_transposed = true},
        of_forward_(forward_),
        of_input_(input_),
        of_weight_(weight_) {}

  void run(Multiplier& by) {
    by.multiply(forward_, of_forward_);
    by.multiply(input_, of_input_);
    by.multiply(weight_, of_weight_);
  }

 private:
  Gemm forward_, input_, weight_;
  Operands of_forward_, of_input_, of_weight_;
};

/// The six products of attention over the keys that each block of queries sees.
class AttentionHead {
 public:
  AttentionHead() {
    for (std::int64_t keys = kQueryBlock; keys <= kContext; keys += kQueryBlock) {
      const Gemm of_scores{.rows = kQueryBlock,
                           .columns = keys,
                           .depth = kHeadColumns,
                           .b_transposed = true,
                           .accumulate = false};
      const Gemm of_values{.rows = kQueryBlock, .columns = kHeadColumns, .depth = keys};
      const Gemm of_keys{
          .rows = keys, .columns = kHeadColumns, .depth = kQueryBlock, .a_transposed = true};
      for (const Gemm& product : {of_scores, of_values, of_keys})
        for (int i = 0; i < 2; ++i) products_.emplace_back(product, Operands(product));
    }
  }

  void run(Multiplier& by) {
    for (auto& [product, operands] : products_) by.multiply(product, operands);
  }

 private:
  std::vector<std::pair<Gemm, Operands>> products_;
};

/// The blocks of one stage of two, or of all.
class StageProducts {
 public:
  StageProducts(DType precision, int blocks, bool has_head) : linear_by_(precision) {
    for (int i = 0; i < blocks; ++i)
      for (const auto& [in, out] : {std::pair(kWidth, 3 * kWidth),
                                    {kWidth, kWidth},
                                    {kWidth, 4 * kWidth},
                                    {4 * kWidth, kWidth}})
        maps_.emplace_back(in, out);
    if (has_head) maps_.emplace_back(kWidth, kWords);
    heads_ = kSamples * kHeads * blocks;
    run_micro_batch();
  }

  void run() {
    for (int i = 0; i < kMicroBatches; ++i) run_micro_batch();
  }

 private:
  void run_micro_batch() {
    for (LinearMap& map : maps_) map.run(linear_by_);
    for (std::int64_t i = 0; i < heads_; ++i) head_.run(attention_by_);
  }

  Multiplier linear_by_;
  Multiplier attention_by_{DType::F32};  // which computes in f32 for every precision
  std::vector<LinearMap> maps_;
  AttentionHead head_;
  std::int64_t heads_ = 0;
};

template <class Body>
void on_each_core(int cores, const Body& body) {
  std::vector<std::future<void>> running;
  for (int core = 0; core < cores; ++core)
    running.push_back(std::async(std::launch::async, [&, core] { body(core); }));
  for (std::future<void>& core : running) core.get();
}

void products_of_step(benchmark::State& state, DType precision) {
  const auto cores = static_cast<int>(state.range(0));
  std::vector<std::unique_ptr<StageProducts>> stages;
  for (int core = 0; core < cores; ++core)
    stages.push_back(
        std::make_unique<StageProducts>(precision, kBlocks / cores, core + 1 == cores));
  for (auto _ : state)
    on_each_core(cores, [&](int core) { stages[static_cast<std::size_t>(core)]->run(); });
  state.counters["tokens_per_second"] =
      benchmark::Counter(kMicroBatches * kRows, benchmark::Counter::kIsIterationInvariantRate);
}

void rate(benchmark::State& state, DType precision, Multiply multiply) {
  constexpr int kTimes = 20;
  const auto cores = static_cast<int>(state.range(0));
  const Gemm product{.rows = 512, .columns = 512, .depth = 512, .factors = precision};
  std::vector<Operands> operands;
  for (int core = 0; core < cores; ++core) operands.emplace_back(product);
  const auto run = [&](int core) {
    millrace::TensorPool pool;
    PassContext context;
    context.pool = &pool;
    auto& [a, b, c] = operands[static_cast<std::size_t>(core)];
    for (int i = 0; i < kTimes; ++i)
      multiply(context, product, a.as<float>().data(), b.as<float>().data(), c.as<float>().data());
  };
  for (auto _ : state) on_each_core(cores, run);
  state.counters["flops"] = benchmark::Counter(2.0 * 512 * 512 * 512 * kTimes * cores,
                                               benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace

int main(int argc, char** argv) {
  for (const DType precision : {DType::F32, DType::BF16}) {
    const std::string name = millrace::name_of(precision);
    for (const auto& [library, multiply] : libraries(precision))
      benchmark::RegisterBenchmark(
          ("rate/" + name + "/" + library).c_str(),
          [=](benchmark::State& state) { rate(state, precision, multiply); })
          ->ArgName("cores")
          ->Arg(1)
          ->Arg(2)
          ->UseRealTime();
    benchmark::RegisterBenchmark(
        ("products_of_step/" + name).c_str(),
        [=](benchmark::State& state) { products_of_step(state, precision); })
        ->ArgName("cores")
        ->Arg(1)
        ->Arg(2)
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
