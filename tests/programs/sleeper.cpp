// A rank whose passes sleep, for steps whose time is that of a network: prints how long one takes.
//
//     sleeper MILLISECONDS BYTES
//
// Every F, I and W takes MILLISECONDS, and every message between stages has BYTES. Rank 0 prints
// the median of some steps: "step 123.4 ms".
#include <algorithm>
#include <chrono>
#include <iostream>
#include <string>
#include <thread>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/training/ranks.hpp"
#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/launch.hpp"

namespace {

using namespace millrace;
using Clock = std::chrono::steady_clock;

constexpr int kMicroBatches = 8;
constexpr int kSteps = 7;

class Sleeping final : public StageBody {
 public:
  Sleeping(std::chrono::milliseconds pass, std::int64_t bytes, const JoinedRank& rank)
      : pass_(pass), bytes_(bytes), last_(rank.rank().value + 1 == rank.world()) {
    weight_ = {"weight." + std::to_string(rank.rank().value),
               Tensor(DType::F32, {1}),
               Tensor(DType::F32, {1})};
    weight_.value.fill_zero();
    weight_.gradient.fill_zero();
  }

  TensorList forward(const PassContext& context, TensorList /*inputs*/) override {
    std::this_thread::sleep_for(pass_);
    if (last_) context.loss->weight += 1;
    return last_ ? TensorList() : message();
  }

  TensorList backward_input(const PassContext& /*context*/, TensorList /*gradients*/) override {
    std::this_thread::sleep_for(pass_);
    return message();
  }

  void backward_weight(const PassContext& /*context*/) override {
    std::this_thread::sleep_for(pass_);
  }

  std::vector<Parameter*> parameters() override { return {&weight_}; }
  void abandon_step() noexcept override {}

 private:
  [[nodiscard]] TensorList message() const {
    Tensor tensor(DType::F32, {1, bytes_ / 4});
    tensor.fill_zero();
    return TensorList(std::move(tensor));
  }

  std::chrono::milliseconds pass_;
  std::int64_t bytes_;
  bool last_;
  Parameter weight_;
};

double median_step(JoinedRank& rank, std::chrono::milliseconds pass, std::int64_t bytes) {
  TrainerOptions options;
  options.step.optimizer.kind = OptimizerKind::Sgd;
  const Program program = generate("1f1b", {.ranks = rank.world(), .micro_batches = kMicroBatches});
  std::vector<std::unique_ptr<StageBody>> mine;
  mine.push_back(std::make_unique<Sleeping>(pass, bytes, rank));
  Trainer trainer(rank_parts({program}, std::move(mine), options, rank.endpoint(), rank.group()));
  Batch batch(make_dataset("nothing",
                           Tensor(DType::F32, {kMicroBatches, 1}),
                           Tensor(DType::F32, {kMicroBatches, 1})),
              kMicroBatches);
  std::vector<double> took;
  for (int i = 0; i < kSteps; ++i) {
    const auto start = Clock::now();
    (void)trainer.step(batch);
    took.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  rank.leave();
  std::nth_element(took.begin(), took.begin() + kSteps / 2, took.end());
  return took[kSteps / 2];
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 3) throw std::invalid_argument("sleeper MILLISECONDS BYTES");
    JoinedRank rank = join_launch({.fields = build_fields()});
    const double step =
        median_step(rank, std::chrono::milliseconds(std::stoi(argv[1])), std::stoll(argv[2]));
    if (rank.rank() == Rank{0}) std::cout << "step " << step << " ms" << std::endl;
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "sleeper: " << error.what() << '\n';
    return exit_code_of(error);
  }
}
