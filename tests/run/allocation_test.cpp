// What a step asks of the heap: the vectors of its result and nothing per action, counted at
// operator new; oneTBB takes the memory of its tasks elsewhere.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/run/executors.hpp"
#include "support/allocation_counter.hpp"

namespace millrace::testing_run {

namespace {

/// Passes on what it gets; the last stage begins the way back with a borrowed tensor.
class PassingStage final : public StageBody {
 public:
  explicit PassingStage(bool last) : last_(last) {}

  TensorList forward(const PassContext&, TensorList inputs) override {
    return last_ ? TensorList() : std::move(inputs);
  }
  TensorList backward_input(const PassContext&, TensorList gradients) override {
    return last_ ? TensorList(borrowed()) : std::move(gradients);
  }
  void backward_weight(const PassContext&) override {}

  static Tensor borrowed() {
    static float memory[2] = {};
    return {DType::F32, {2}, memory, nullptr, nullptr};
  }

 private:
  bool last_;
};

class BorrowedData final : public StepData {
 public:
  TensorList inputs(const Unit&) override { return TensorList(PassingStage::borrowed()); }
  TensorList targets(const Unit&) override { return TensorList(PassingStage::borrowed()); }
  [[nodiscard]] std::int64_t first_sample(const Unit&) const override { return 0; }
};

std::size_t allocations_of_a_step(const char* kind, const char* schedule, int micro_batches) {
  const Program program = generate(schedule, {.ranks = 4, .micro_batches = micro_batches});
  std::vector<std::unique_ptr<PassingStage>> bodies;
  std::vector<HostedStage> hosted;
  for (int stage = 0; stage < program.shape.stages(); ++stage) {
    bodies.push_back(std::make_unique<PassingStage>(stage + 1 == program.shape.stages()));
    hosted.push_back({Replica{0}, Stage{stage}, bodies.back().get()});
  }
  const auto executor =
      make_executor(kind, program, hosted, {.inline_below = std::chrono::seconds(0)});
  BorrowedData data;
  for (int step = 0; step < 2; ++step) (void)executor->run(data, {});
  const std::size_t before = test::allocations();
  (void)executor->run(data, {});
  return test::allocations() - before;
}

TEST(Allocation, AStepAllocatesTheTwoVectorsOfItsResultHoweverManyActions) {
  for (const char* kind : {"sequential", "flow-graph"})
    for (const char* schedule : {"1f1b", "zb-h1", "gpipe"})
      for (const int micro_batches : {4, 8, 40})
        EXPECT_EQ(allocations_of_a_step(kind, schedule, micro_batches), 2U)
            << kind << ", " << schedule << ", " << micro_batches << " micro-batches";
}

}  // namespace

}  // namespace millrace::testing_run
