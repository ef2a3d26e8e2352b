// What a step asks of the heap: the vectors of its result and nothing per action, counted at
// operator new; oneTBB takes the memory of its tasks elsewhere.
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/run/executor.hpp"
#include "millrace/transport/in_process.hpp"
#include "millrace/transport/private_directory.hpp"
#include "millrace/transport/shared_memory.hpp"
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
    static float memory[8192] = {};  // over shared memory used where it arrives
    return {DType::F32, {8192}, memory, nullptr, nullptr};
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

std::size_t allocations_of_a_step(ExecutorKind kind, const char* schedule, int micro_batches) {
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

/// Of a step of all ranks, each on a thread of its own. Queues grow in the first steps, by how many
/// messages happen to wait in them, which has a bound: so the least of many steps.
std::size_t least_allocations(const std::vector<std::unique_ptr<Endpoint>>& endpoints,
                              int micro_batches) {
  const int ranks = static_cast<int>(endpoints.size());
  const Program program = generate("1f1b", {.ranks = ranks, .micro_batches = micro_batches});
  std::vector<std::unique_ptr<PassingStage>> bodies;
  std::vector<std::unique_ptr<Executor>> executors;
  for (int rank = 0; rank < ranks; ++rank) {
    bodies.push_back(std::make_unique<PassingStage>(rank + 1 == ranks));
    const HostedStage hosted{Replica{0}, Stage{rank}, bodies.back().get()};
    executors.push_back(
        make_rank_executor(program, std::span(&hosted, 1), *endpoints[executors.size()]));
  }
  BorrowedData data;
  std::barrier between(ranks);
  std::size_t before = test::allocations();
  std::size_t least = before;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      for (std::uint64_t step = 0; step < 100; ++step) {
        (void)executors[static_cast<std::size_t>(rank)]->run(data, {.step = step});
        between.arrive_and_wait();
        if (rank == 0) {
          const std::size_t now = test::allocations();
          least = std::min(least, now - std::exchange(before, now));
        }
        between.arrive_and_wait();
      }
    });
  threads.clear();
  return least;
}

TEST(Allocation, Ranks_AllocateResultsOnly) {
  for (const int micro_batches : {4, 40}) {
    InProcessHub hub(3);
    std::vector<std::unique_ptr<Endpoint>> endpoints;
    for (int rank = 0; rank < 3; ++rank) endpoints.push_back(hub.endpoint(Rank{rank}));
    EXPECT_EQ(least_allocations(endpoints, micro_batches), 6U) << "in one process";
    const PrivateDirectory directory(std::filesystem::temp_directory_path());
    SharedMemoryOptions options;
    options.world = 3;
    options.directory = directory.path();
    EXPECT_EQ(least_allocations(shared_memory_mesh(options), micro_batches), 6U)
        << "over shared memory";
  }
}

TEST(Allocation, Step_AllocatesTwoVectors) {
  for (const ExecutorKind kind : {ExecutorKind::Sequential, ExecutorKind::FlowGraph})
    for (const char* schedule : {"1f1b", "zb-h1", "gpipe"})
      for (const int micro_batches : {4, 8, 40})
        EXPECT_EQ(allocations_of_a_step(kind, schedule, micro_batches), 2U)
            << name_of(kind) << ", " << schedule << ", " << micro_batches << " micro-batches";
}

}  // namespace

}  // namespace millrace::testing_run
