// What a step asks of the heap: the vectors of its result and nothing per action. The program's
// operator new counts; oneTBB takes the memory of its tasks elsewhere.
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

#include <gtest/gtest.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/run/executors.hpp"

namespace {

std::atomic<std::size_t> allocations_made = 0;  // any thread

void* counted(std::size_t bytes, std::size_t alignment) {
  allocations_made.fetch_add(1, std::memory_order_relaxed);
  const std::size_t whole = (bytes + alignment) / alignment * alignment;
  void* block = std::aligned_alloc(alignment, whole);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

}  // namespace

void* operator new(std::size_t bytes) {
  return counted(bytes, alignof(std::max_align_t));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
// The library's stable_sort asks for its buffer this way; the pair must match.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return counted(bytes, alignof(std::max_align_t));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* block) noexcept {
  std::free(block);
}
void operator delete(void* block, std::size_t) noexcept {
  std::free(block);
}
void operator delete(void* block, std::align_val_t) noexcept {
  std::free(block);
}
void operator delete(void* block, std::size_t, std::align_val_t) noexcept {
  std::free(block);
}

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
  const auto executor = make_executor(kind, program, hosted);
  BorrowedData data;
  for (int step = 0; step < 2; ++step) (void)executor->run(data, {});
  const std::size_t before = allocations_made.load();
  (void)executor->run(data, {});
  return allocations_made.load() - before;
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
