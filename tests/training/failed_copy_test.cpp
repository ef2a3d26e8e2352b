// A stage, or its update, that fails in one of several copies of a pipeline, all in one process: it
// is named with its copy, and every other place ends with that sentence.
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/training/ranks.hpp"
#include "millrace/training/trainer.hpp"
#include "millrace/transport/in_process.hpp"
#include "tests/training/first_digits.hpp"
#include "tests/training/on_ranks.hpp"

namespace millrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_training::first_digits;
using testing_training::kPatience;
using testing_training::plain_options;

enum class FailingPass : std::uint8_t { Forward, BackwardInput, BackwardWeight, Update };

/// Wraps a stage, and fails in one pass of the second step.
class Failing final : public StageBody {
 public:
  Failing(std::unique_ptr<StageBody> body, FailingPass pass)
      : body_(std::move(body)), pass_(pass) {}

  TensorList forward(const PassContext& context, TensorList inputs) override {
    fail_in(FailingPass::Forward, context);
    return body_->forward(context, std::move(inputs));
  }
  TensorList backward_input(const PassContext& context, TensorList gradients) override {
    fail_in(FailingPass::BackwardInput, context);
    return body_->backward_input(context, std::move(gradients));
  }
  void backward_weight(const PassContext& context) override {
    fail_in(FailingPass::BackwardWeight, context);
    body_->backward_weight(context);
  }
  std::vector<Parameter*> parameters() override { return body_->parameters(); }
  void reserve(int micro_batches, int slices) override { body_->reserve(micro_batches, slices); }
  [[nodiscard]] std::size_t stashed_units() const override { return body_->stashed_units(); }
  void abandon_step() noexcept override { body_->abandon_step(); }

 private:
  void fail_in(FailingPass pass, const PassContext& context) const {
    if (pass == pass_ && context.training && context.step == 1 &&
        context.micro_batch == MicroBatch{1})
      throw Error("the floor gave way");
  }

  std::unique_ptr<StageBody> body_;
  FailingPass pass_;
};

/// Sgd without a step size, which fails in the second step where it `fails`.
class FailingOptimizer final : public Optimizer {
 public:
  explicit FailingOptimizer(bool fails) : fails_(fails) {}

  [[nodiscard]] int slots() const override { return 0; }
  [[nodiscard]] std::string_view slot_name(int) const override { return ""; }
  void update(const UpdateSettings& settings,
              std::span<float> value,
              std::span<const float> gradient,
              std::span<const std::span<float>>) const override {
    if (fails_ && settings.number == 2) throw Error("the floor gave way");
    for (std::size_t i = 0; i < value.size(); ++i) value[i] -= gradient[i];
  }

 private:
  bool fails_;
};

/// Of a grid of two copies by two places; stage 1 of copy 1 fails.
constexpr Rank kFailingPlace{3};

std::string end_of_place(Endpoint& endpoint, ProcessGroup& group, FailingPass pass) {
  TestOptions options = plain_options(2, 2);
  options.pipeline.schedule = "zb-h1";
  options.step.accumulate_order = AccumulateOrder::Tree;
  options.fit.batch_size = 40;
  if (pass == FailingPass::Update)
    options.step.custom_optimizer =
        std::make_shared<FailingOptimizer>(endpoint.rank() == kFailingPlace);
  const std::vector<int> boundaries = {0, 1, 2};
  const int stage = endpoint.rank().value % 2;
  std::vector<std::unique_ptr<StageBody>> bodies;
  bodies.push_back(build_stage(parse_model("mlp:64-16-10"), boundaries, stage, options.step.seed));
  if (endpoint.rank() == kFailingPlace)
    bodies[0] = std::make_unique<Failing>(std::move(bodies[0]), pass);
  const Program program = generate(options.pipeline.schedule, {.ranks = 2, .micro_batches = 2});
  Trainer trainer(
      rank_parts({program}, std::move(bodies), options, GridPosition(endpoint, Grid(2, 2)), group));
  trainer.fit(first_digits(89));
  return "nothing";
}

/// By place of the grid.
std::vector<std::string> ends_of_places(FailingPass pass) {
  InProcessHub hub(4);
  std::vector<std::string> ends(4);
  std::vector<std::jthread> places;
  for (int place = 0; place < 4; ++place)
    places.emplace_back([&ends, place, pass, endpoint = hub.endpoint(Rank{place})] {
      std::string& end = ends[static_cast<std::size_t>(place)];
      try {
        ProcessGroup group(*endpoint, kPatience);
        end = end_of_place(*endpoint, group, pass);
      } catch (const std::exception& error) {
        end = error.what();
        endpoint->cancel(end);
      }
    });
  places.clear();
  return ends;
}

TEST(FailedCopy, IsNamedAtEveryPlaceOfTheGrid) {
  const std::vector<std::pair<FailingPass, std::string>> cases = {
      {FailingPass::Forward, "forward of stage 1, micro-batch 1"},
      {FailingPass::BackwardInput, "backward-input of stage 1, micro-batch 1"},
      {FailingPass::BackwardWeight, "backward-weight of stage 1, micro-batch 1"},
      {FailingPass::Update, "optimizer step of stage 1"}};
  for (const auto& [pass, what] : cases)
    for (const std::string& end : ends_of_places(pass))
      EXPECT_THAT(end,
                  AllOf(HasSubstr(what + " failed on rank 1 of copy 1"),
                        HasSubstr(": the floor gave way")));
}

}  // namespace
}  // namespace millrace
