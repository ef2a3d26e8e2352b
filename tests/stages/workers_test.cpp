// Passes that several threads share give the bits of one thread, for any order of their
// blocks.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/stages/models.hpp"
#include "millrace/stages/partition.hpp"
#include "millrace/stages/stage.hpp"
#include "stages/kernels/blocks.hpp"
#include "stages/kernels/product.hpp"
#include "stages/layer_probe.hpp"

namespace millrace::test {
namespace {

/// Threads that take blocks in an order of their own, another one each time.
class ShuffledWorkers final : public Workers {
 public:
  explicit ShuffledWorkers(std::size_t threads) : threads_(threads) {}

  void run(std::int64_t blocks, const std::function<void(std::int64_t)>& body) override {
    EXPECT_FALSE(running_.exchange(true)) << "a block shares its work again";
    EXPECT_TRUE(unblocked_signals().contains(SIGALRM)) << "new threads would inherit the mask";
    shared_ += blocks;
    std::vector<std::int64_t> order(static_cast<std::size_t>(blocks));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_);
    std::atomic<std::size_t> next = 0;
    const auto work = [&] {
      for (std::size_t i = next++; i < order.size(); i = next++) body(order[i]);
    };
    {
      std::vector<std::jthread> others;
      for (std::size_t i = 1; i < threads_; ++i) others.emplace_back(work);
      work();
    }
    running_ = false;
  }

  [[nodiscard]] std::int64_t shared() const { return shared_; }

 private:
  std::size_t threads_;
  std::mt19937 random_{7};
  std::int64_t shared_ = 0;
  std::atomic<bool> running_ = false;
};

struct Passes {
  LossSum loss;
  std::vector<Tensor> gradients;
};

Tensor ids(const Dims& dims, std::int32_t below, std::int32_t step) {
  Tensor tensor(DType::I32, dims);
  std::int32_t id = 0;
  for (std::int32_t& value : tensor.as<std::int32_t>()) value = (id += step) % below;
  return tensor;
}

/// All passes of a model in one stage over two micro-batches.
Passes passes_of(const ModelSpec& model, std::int64_t samples, Workers* workers) {
  const std::vector<int> whole{0, model.layer_count()};
  const auto stage = build_stage(model, whole, 0, 1);
  stage->reserve(2, 1);
  Passes passes;
  for (int i = 0; i < 2; ++i) {
    PassContext context = training_context();
    context.micro_batch = MicroBatch{i};
    context.workers = workers;
    context.loss = &passes.loss;
    Tensor input = model.context > 0 ? ids({samples, model.context}, 64, 7 + i)
                                     : drawn(DType::F32, {samples, 784}, 5);
    TensorList targets(model.context > 0 ? ids({samples, model.context}, 64, 11)
                                         : ids({samples}, 10, 3));
    context.targets = &targets;
    stage->forward(context, TensorList(std::move(input)));
    stage->backward_input(context, {});
    stage->backward_weight(context);
  }
  for (const Parameter* parameter : stage->parameters())
    passes.gradients.push_back(parameter->gradient.clone());
  return passes;
}

struct Case {
  const char* model;
  std::int64_t samples;
  DType precision;
};

class SharedPasses : public testing::TestWithParam<Case> {};

TEST_P(SharedPasses, GiveTheBitsOfOneThread) {
  ModelSpec model = parse_model(GetParam().model);
  model.precision = GetParam().precision;
  const Passes alone = passes_of(model, GetParam().samples, nullptr);
  for (const std::size_t threads : {1U, 2U, 3U}) {
    ShuffledWorkers workers(threads);
    const Passes shared = passes_of(model, GetParam().samples, &workers);
    EXPECT_GT(workers.shared(), 40);
    EXPECT_EQ(shared.loss.sum, alone.loss.sum);
    ASSERT_EQ(shared.gradients.size(), alone.gradients.size());
    for (std::size_t i = 0; i < alone.gradients.size(); ++i)
      EXPECT_TRUE(same_bits(shared.gradients[i], alone.gradients[i])) << i;
  }
}

constexpr const char* kOne = "gpt:layers=1,d=128,heads=4,context=128,vocabulary=64";
constexpr const char* kOther =
    "gpt:layers=1,d=128,heads=4,kv=2,context=128,vocabulary=64,mlp=swiglu,norm=rms,pos=rotary,"
    "dropout=0.1";

INSTANTIATE_TEST_SUITE_P(Workers,
                         SharedPasses,
                         testing::Values(Case{kOne, 4, DType::F32},
                                         Case{kOne, 4, DType::BF16},
                                         Case{kOther, 4, DType::F32},
                                         Case{kOther, 3, DType::F16},
                                         Case{"mlp:784-512-256-10,tanh", 512, DType::F32},
                                         Case{"mlp:784-512-256-10", 512, DType::BF16}),
                         [](const auto& of) { return "Case" + std::to_string(of.index); });

TEST(Workers, SharedProducts_HaveBitsOfOneThread) {
  TensorPool pool;
  for (const DType factors : {DType::F32, DType::BF16})
    for (const bool a_turned : {false, true})
      for (const bool b_turned : {false, true}) {
        const Gemm product{.rows = 600,
                           .columns = 200,
                           .depth = 300,
                           .a_transposed = a_turned,
                           .b_transposed = b_turned,
                           .factors = factors};
        const Tensor a = drawn(DType::F32, {600 * 300}, 1);
        const Tensor b = drawn(DType::F32, {300 * 200}, 2);
        Tensor alone(DType::F32, {600, 200});
        alone.fill_zero();
        Tensor shared = alone.clone();
        ShuffledWorkers workers(3);
        PassContext context;
        context.pool = &pool;
        const auto multiply_to = [&](Tensor& c) {
          multiply<float>(
              context, product, a.as<float>().data(), b.as<float>().data(), c.as<float>().data());
        };
        multiply_to(alone);
        context.workers = &workers;
        multiply_to(shared);
        EXPECT_GE(workers.shared(), 2);
        EXPECT_TRUE(same_bits(alone, shared));
      }
}

TEST(Workers, CoverEveryRowOnceInRangesThatFollow) {
  ShuffledWorkers workers(2);
  PassContext context;
  for (const bool several : {false, true})
    for (const std::int64_t rows : {0, 1, 7, 4096, 100'001}) {
      context.workers = several ? &workers : nullptr;
      std::vector<std::atomic<int>> seen(static_cast<std::size_t>(rows));
      for_rows(context, rows, 40, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; ++i) ++seen[static_cast<std::size_t>(i)];
      });
      EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](const auto& n) { return n == 1; }));
    }
}

}  // namespace
}  // namespace millrace::test
