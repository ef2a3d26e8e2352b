// Compiler, instruction set and GEMM library; GEMM operations of a training, and the GEMM rate.
#include "millrace/stages/products.hpp"

#include <algorithm>
#include <chrono>
#include <future>
#include <vector>

#include "millrace/core/error.hpp"
#include "stages/kernels/precision.hpp"
#include "stages/kernels/product.hpp"
#include "stages/kernels/sampled.hpp"
#include "stages/models/cut.hpp"

namespace millrace {
namespace {

constexpr const char* kCompiler =
#if defined(__clang__)
    "clang " __clang_version__;
#elif defined(__GNUC__)
    "gcc " __VERSION__;
#else
    "another compiler";
#endif

constexpr const char* kVectors =
#if defined(__AVX512F__)
    "avx512";
#elif defined(__AVX2__)
    "avx2";
#elif defined(__AVX__)
    "avx";
#elif defined(__ARM_FEATURE_SVE)
        "sve";
#else
        "baseline vectors";
#endif

constexpr bool kFused =
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    true;
#else
    false;
#endif

constexpr bool kFast =
#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__)
    true;
#else
    false;
#endif

}  // namespace

std::string compiled_code() {
  std::string text = std::string(kCompiler) + ", " + kVectors;
  if (kFused) text += ", fma";
  if (kFast) text += ", fast math";
#if defined(__OPTIMIZE__)
  return text;
#else
  return text + ", not optimized";
#endif
}

namespace {

constexpr std::int64_t kMeasuredRows = 256;
constexpr std::int64_t kDepth = 512;
constexpr double kMeasured = 0.015;  // seconds

Tensor filled(std::int64_t rows, std::int64_t columns) {
  Tensor tensor(DType::F32, {rows, columns});
  std::ranges::fill(tensor.as<float>(), 0.5F);
  return tensor;
}

double now() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

/// Operations per second of the calling thread, by its median product.
double rate_of_thread(DType precision) {
  TensorPool pool;
  PassContext context;
  context.pool = &pool;
  const Tensor a = filled(kMeasuredRows, kDepth);
  const Tensor b = filled(kDepth, kMeasuredRows);
  Tensor c = filled(kMeasuredRows, kMeasuredRows);
  const auto multiply = [&] {
    add_forward<float>(context,
                       {kMeasuredRows, kDepth, kMeasuredRows, precision},
                       values<float>(a),
                       values<float>(b),
                       values<float>(c));
  };
  std::vector<double> seconds = sampled(multiply, now, kMeasured);
  const auto middle = seconds.begin() + std::ssize(seconds) / 2;
  std::ranges::nth_element(seconds, middle);
  return 2.0 * kMeasuredRows * kDepth * kMeasuredRows / *middle;
}

/// Passes that make products, each as many operations: F, I where a gradient is wanted, W.
double passes_of(const std::vector<TensorType>& inputs) {
  return std::ranges::any_of(inputs, &TensorType::has_gradient) ? 3 : 2;
}

}  // namespace

double training_operations(const ModelSpec& model, const UnitSize& size) {
  const std::vector<int> boundaries{0, model.layer_count()};
  const auto whole = stage_without_parameters(model, boundaries, 0);
  const ModelCut cut(model, boundaries);
  double operations = 0;
  for (int layer = 0; layer < model.layer_count(); ++layer) {
    std::vector<TensorType> inputs = cut.input_types(layer);
    for (TensorType& type : inputs) type = sized(type, size);
    operations +=
        passes_of(inputs) * whole->layer(static_cast<std::size_t>(layer)).operations(inputs);
  }
  return operations;
}

double product_rate(DType precision, int threads) {
  require(threads >= 1,
          "products are measured by at least 1 thread, got " + std::to_string(threads));
  std::vector<std::future<double>> rates;
  for (int i = 0; i < threads; ++i)
    rates.push_back(std::async(std::launch::async, rate_of_thread, precision));
  double sum = 0;
  for (std::future<double>& rate : rates) sum += rate.get();
  return sum;
}

}  // namespace millrace
