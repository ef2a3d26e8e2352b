// What multiplies fastest? The three products of a linear map, by every library that this build
// has, in f32 and in bf16, at the shapes of the models that are trained here. `chosen` is what the
// layers get: it takes the library by shape.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "millrace/core/random.hpp"
#include "stages/kernels/backends.hpp"

namespace {

using millrace::DType;
using millrace::Gemm;
using millrace::PassContext;
using millrace::Tensor;

/// Of a linear map: x [rows, in], W [in, out].
struct Map {
  std::int64_t rows, in, out;
};

const std::vector<Map> kMaps = {{16, 96, 96},
                                {8, 784, 512},
                                {128, 784, 512},
                                {128, 256, 256},
                                {128, 256, 1024},
                                {128, 1024, 256},
                                {512, 256, 256},
                                {512, 256, 1024},
                                {512, 1024, 256},
                                {64, 128, 32}};

using Multiply =
    std::function<void(const PassContext&, const Gemm&, const float*, const float*, float*)>;

Tensor drawn(std::int64_t count, std::uint64_t seed) {
  Tensor tensor(DType::F32, {count});
  const millrace::RandomKey key{.seed = seed};
  std::uint32_t i = 0;
  for (float& value : tensor.as<float>())
    value = static_cast<float>(2 * millrace::random_uniform(key, i++) - 1);
  return tensor;
}

void run(benchmark::State& state, const Gemm& product, const Multiply& multiply) {
  millrace::TensorPool pool;
  PassContext context;
  context.pool = &pool;
  const Tensor a = drawn(product.rows * product.depth, 1);
  const Tensor b = drawn(product.depth * product.columns, 2);
  Tensor c = drawn(product.rows * product.columns, 3);
  for (auto _ : state) {
    multiply(context, product, a.as<float>().data(), b.as<float>().data(), c.as<float>().data());
    benchmark::ClobberMemory();
  }
  const auto operations = 2.0 * static_cast<double>(product.rows * product.columns * product.depth);
  state.counters["flops"] =
      benchmark::Counter(operations, benchmark::Counter::kIsIterationInvariantRate);
}

void add(const std::string& name, const Gemm& product, const Multiply& multiply) {
  benchmark::RegisterBenchmark(name.c_str(),
                               [=](benchmark::State& state) { run(state, product, multiply); });
}

/// All that this build has for one product.
void add_all(const std::string& name, Gemm product) {
  using namespace millrace;
  add(name + "/eigen", product, eigen::multiply<float>);
  if constexpr (kOneDnn) add(name + "/onednn", product, onednn::multiply);
  add(name + "/chosen", product, multiply<float>);
  product.factors = DType::BF16;
  add(name + "/chosen_bf16", product, multiply<float>);
}

}  // namespace

int main(int argc, char** argv) {
  for (const auto& [rows, in, out] : kMaps) {
    const std::string map =
        std::to_string(rows) + "x" + std::to_string(in) + "x" + std::to_string(out);
    add_all("forward/" + map, {.rows = rows, .columns = out, .depth = in});
    add_all("input_gradient/" + map,
            {.rows = rows, .columns = in, .depth = out, .b_transposed = true});
    add_all("weight_gradient/" + map,
            {.rows = in, .columns = out, .depth = rows, .a_transposed = true});
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
