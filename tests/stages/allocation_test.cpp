// A step in its steady state takes no memory, counted at operator new. (Eigen's products get their
// packing memory from the pool, so they do not reach for malloc either; oneDNN's do, for the time
// of a call.)
#include <cstddef>

#include <gtest/gtest.h>

#include "millrace/stages/models.hpp"
#include "millrace/stages/partition.hpp"
#include "stages/layer_probe.hpp"
#include "support/allocation_counter.hpp"

namespace millrace::test {
namespace {

/// Four micro-batches forward, then backward, through all stages.
class Steps {
 public:
  Steps(const char* text, int stages, bool recompute) : recompute_(recompute) {
    const ModelSpec model = parse_model(text);
    stages_ = build_stages(model, even_boundaries(model, stages), 1);
    for (auto& stage : stages_) stage->reserve(kUnits, 1);
    const bool words = model.context > 0;
    Tensor labels(DType::I32, words ? Dims{kRows, model.context} : Dims{kRows});
    labels.fill_zero();
    input_ = words ? labels.clone() : drawn(DType::F32, {kRows, model.input_columns()}, 1);
    targets_.push_back(std::move(labels));
  }

  void run() {
    for (int unit = 0; unit < kUnits; ++unit) {
      TensorList flow(input_.borrow_rows(0, kRows));
      for (auto& stage : stages_) flow = stage->forward(context_of(unit), std::move(flow));
    }
    for (int unit = 0; unit < kUnits; ++unit) {
      TensorList flow;
      for (auto stage = stages_.rbegin(); stage != stages_.rend(); ++stage) {
        if (recompute_) (*stage)->recompute(context_of(unit));
        flow = (*stage)->backward(context_of(unit), std::move(flow));
      }
    }
  }

  [[nodiscard]] std::size_t blocks() const { return pool_.blocks_allocated(); }

 private:
  static constexpr int kUnits = 4;
  static constexpr std::int64_t kRows = 16;

  PassContext context_of(int unit) {
    PassContext context;
    context.micro_batch = MicroBatch{unit};
    context.targets = &targets_;
    context.loss = &loss_;
    context.pool = &pool_;
    context.recompute_later = recompute_;
    return context;
  }

  bool recompute_;
  TensorPool pool_;
  LossSum loss_;
  Tensor input_;
  TensorList targets_;
  std::vector<std::unique_ptr<StageModule>> stages_;
};

TEST(SteadyStep, TakesNoMemoryFromTheSystem) {
  const struct {
    const char* text;
    int stages;
  } models[] = {
      {"mlp:300-512-400-10", 1},
      {"mlp:300-512-400-10", 3},
      {"mlp:300-64-48-10,gelu,norm,dropout=0.1", 1},
      {"mlp:300-64-48-10,gelu,norm,dropout=0.1", 3},
      {"gpt:layers=2,d=32,heads=4,kv=2,context=24,pos=rotary,dropout=0.1", 1},
      {"gpt:layers=2,d=32,heads=2,context=24,mlp=swiglu,norm=rms", 1},
  };
  for (const auto& [text, stages] : models)
    for (const bool recompute : {false, true}) {
      Steps steps(text, stages, recompute);
      for (int warm_up = 0; warm_up < 2; ++warm_up) steps.run();
      const std::size_t blocks = steps.blocks();
      const std::size_t before = allocations();

      for (int step = 0; step < 3; ++step) steps.run();

      EXPECT_EQ(allocations() - before, 0U) << text << ", " << stages << " stages";
      EXPECT_EQ(steps.blocks(), blocks) << text << ", " << stages << " stages";
    }
}

}  // namespace
}  // namespace millrace::test
