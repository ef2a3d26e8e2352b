// Nothing stays behind: however many steps run or fail, as many tensors of PyTorch are alive as
// before, the process keeps its size, and after a failure the pipeline trains on as if there had
// been none. MILLRACE_TIMES (the long campaign sets it) says how much longer than the suite.
#include <ATen/ATen.h>
#include <algorithm>
#include <atomic>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <cstddef>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/torch/pipeline.hpp"
#include "millrace/training/trainer.hpp"
#include "support/resident_bytes.hpp"
#include "torch/small_gpt.hpp"
#include "transport/repetitions.hpp"

namespace millrace::testing_torch {
namespace {

constexpr int kFewUnits = 3;

/// PyTorch's memory for tensors, counted.
class CountedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) const override {
    void* memory = c10::alloc_cpu(bytes);
    if (memory != nullptr) ++alive_;
    return {memory, memory, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  static int alive() { return alive_; }

 private:
  static void release(void* memory) {
    if (memory == nullptr) return;
    --alive_;
    c10::free_cpu(memory);
  }

  inline static std::atomic<int> alive_{0};
};

/// Counts as long as it lives.
class Counting {
 public:
  Counting() : before_(c10::GetCPUAllocator()) {
    static CountedMemory counted;
    c10::SetCPUAllocator(&counted, kPriority);
  }
  Counting(const Counting&) = delete;
  Counting& operator=(const Counting&) = delete;
  ~Counting() { c10::SetCPUAllocator(before_, kPriority); }

 private:
  static constexpr std::uint8_t kPriority = 200;
  c10::Allocator* before_;
};

/// Where a module fails.
enum class Fault { None, Forward, Backward, TensorHook, ParameterHook, Loss };

/// The fault, and after how many units it comes.
struct Plan {
  std::atomic<Fault> fault{Fault::None};
  std::atomic<int> units{0};

  void set(Fault which, int after) {
    fault = which;
    units = after;
  }
  void meet(Fault here) {
    if (fault == here && units-- == 0) throw std::runtime_error("the glass broke");
  }
};

/// The identity, with a backward of the user's own.
struct Glass : torch::autograd::Function<Glass> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context,
                               const torch::Tensor& x,
                               std::int64_t plan) {
    context->saved_data["plan"] = plan;
    return x * 1;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    reinterpret_cast<Plan*>(context->saved_data["plan"].toInt())->meet(Fault::Backward);
    return {gradients[0], torch::Tensor()};
  }
};

struct FaultyImpl : torch::nn::Module {
  explicit FaultyImpl(Plan& of)
      : plan(of), layer(register_module("layer", torch::nn::Linear(kWidth, kWidth))) {
    layer->weight.register_hook([&of](const torch::Tensor& gradient) {
      of.meet(Fault::ParameterHook);
      return gradient;
    });
  }

  torch::Tensor forward(const torch::Tensor& x) {
    plan.meet(Fault::Forward);
    const torch::Tensor y = Glass::apply(layer(x), reinterpret_cast<std::int64_t>(&plan));
    if (y.requires_grad())
      y.register_hook([this](const torch::Tensor& gradient) {
        plan.meet(Fault::TensorHook);
        return gradient;
      });
    return y;
  }

  Plan& plan;
  torch::nn::Linear layer;
};
TORCH_MODULE(Faulty);

/// A small transformer in three stages, of which the middle one and the loss fail on demand.
class Fragile3 {
 public:
  explicit Fragile3(const std::string& executor, const std::string& schedule = "zb-h1")
      : model_(made(plan_)),
        data_(kFewUnits),
        trainer_({generate(schedule, {.ranks = 3, .micro_batches = kFewUnits})},
                 torch_pipeline(model_, loss(), 3),
                 options(executor)) {}

  void step() { (void)trainer_.step(data_, data_.total_weight()); }

  void failing_step(Fault fault, int after) {
    plan_.set(fault, after);
    try {
      step();
      ADD_FAILURE() << "fault " << static_cast<int>(fault) << " did not come";
    } catch (const StepError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("the glass broke"));
    }
    plan_.set(Fault::None, 0);
    for (const HostedStage& hosted : trainer_.stages()) EXPECT_EQ(hosted.body->stashed_units(), 0U);
  }

  [[nodiscard]] std::string weights() { return trainer_.weights_hash(); }

 private:
  static torch::nn::Sequential made(Plan& plan) {
    torch::manual_seed(3);
    return torch::nn::Sequential(Embed(), Block(), Faulty(plan), torch::nn::Linear(kWidth, kWords));
  }
  static TrainerOptions options(const std::string& executor) {
    TrainerOptions options{.run = {.executor = executor}};
    options.step.learning_rate.base = 1e-4;
    return options;
  }
  TorchLoss loss() {
    return [this](const std::vector<torch::Tensor>& outputs,
                  const std::vector<torch::Tensor>& targets) {
      plan_.meet(Fault::Loss);
      return next_word_loss(outputs, targets);
    };
  }

  Plan plan_;
  torch::nn::Sequential model_;
  Sentences data_;
  Trainer trainer_;
};

constexpr std::array kFaults = {
    Fault::Forward, Fault::Backward, Fault::TensorHook, Fault::ParameterHook, Fault::Loss};

class TorchSteady : public testing::TestWithParam<std::string> {};

TEST_P(TorchSteady, FailingSteps_LeaveNoTensor) {
  const Counting counting;
  Fragile3 training(GetParam()), unharmed(GetParam());
  training.step();
  unharmed.step();
  const int alive = CountedMemory::alive();
  ASSERT_GT(alive, 0);
  const auto failures = static_cast<std::size_t>(testing_transport::times(100));
  for (std::size_t i = 0; i < failures; ++i) {
    training.failing_step(kFaults[i % kFaults.size()], static_cast<int>(i / 5 % kFewUnits));
    ASSERT_EQ(CountedMemory::alive(), alive) << "after failure " << i;
    if (i % 10 != 9) continue;
    training.step();
    unharmed.step();
    ASSERT_EQ(training.weights(), unharmed.weights()) << "after failure " << i;
  }
  EXPECT_EQ(CountedMemory::alive(), alive);
}

/// What threads of an executor need at once only now and then may still come late.
TEST_P(TorchSteady, StepsLeaveNothingBehind) {
  constexpr std::ptrdiff_t kLate = 3 << 20;
  const Counting counting;
  Fragile3 training(GetParam());
  const auto steps = static_cast<int>(testing_transport::times(500));
  int alive = 0;
  std::size_t resident = 0;
  for (int i = 0; i < steps; ++i) {
    training.step();
    if (i == 0) alive = CountedMemory::alive();
    ASSERT_EQ(CountedMemory::alive(), alive) << "after step " << i;
    if (i == steps / 2) resident = test::resident_bytes();
  }
  const auto growth = static_cast<std::ptrdiff_t>(test::resident_bytes() - resident);
  std::cout << GetParam() << ": the second half of " << steps << " steps took " << growth
            << " bytes\n";
  EXPECT_LT(growth, kLate);
}

INSTANTIATE_TEST_SUITE_P(Executors,
                         TorchSteady,
                         testing::Values("sequential", "flow-graph", "ranks"),
                         [](const auto& tested) -> std::string {
                           if (tested.param == "flow-graph") return "FlowGraph";
                           return tested.param == "ranks" ? "Ranks" : "Sequential";
                         });

}  // namespace
}  // namespace millrace::testing_torch
