// One verdict over a whole grid: one number of one gradient that is not finite, in one copy of one
// stage, makes every place skip that step and no other.
#include <limits>
#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/training/ranks.hpp"
#include "millrace/training/trainer.hpp"
#include "tests/training/first_digits.hpp"
#include "tests/training/on_ranks.hpp"

namespace millrace {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing_training::first_digits;
using testing_training::on_ranks;
using testing_training::plain_options;

/// Wraps a stage: behind its first micro-batch of the second step one number of its first gradient
/// is infinite.
class OneInfinity final : public StageBody {
 public:
  OneInfinity(std::unique_ptr<StageBody> body, std::size_t index)
      : body_(std::move(body)), index_(index) {}

  TensorList forward(const PassContext& context, TensorList inputs) override {
    return body_->forward(context, std::move(inputs));
  }
  TensorList backward_input(const PassContext& context, TensorList gradients) override {
    return body_->backward_input(context, std::move(gradients));
  }
  void backward_weight(const PassContext& context) override {
    body_->backward_weight(context);
    if (context.step == 1 && context.micro_batch == MicroBatch{0})
      body_->parameters()[0]->gradient.as<float>()[index_] = std::numeric_limits<float>::infinity();
  }
  std::vector<Parameter*> parameters() override { return body_->parameters(); }
  void reserve(int micro_batches, int slices) override { body_->reserve(micro_batches, slices); }
  [[nodiscard]] std::size_t stashed_units() const override { return body_->stashed_units(); }
  void abandon_step() noexcept override { body_->abandon_step(); }

 private:
  std::unique_ptr<StageBody> body_;
  std::size_t index_;
};

/// What a place of the grid saw.
struct PlaceCourse {
  std::vector<bool> skipped;
  std::string weights;

  friend bool operator==(const PlaceCourse&, const PlaceCourse&) = default;
  friend std::ostream& operator<<(std::ostream& stream, const PlaceCourse& course) {
    for (const bool skipped : course.skipped) stream << (skipped ? "skipped " : "updated ");
    return stream << course.weights;
  }
};

/// On two copies by two places; the infinity is in stage 1 of copy 1.
PlaceCourse course_of_place(Endpoint& endpoint,
                            ProcessGroup& group,
                            bool is_sharded,
                            std::size_t index) {
  TestOptions options = plain_options(2, 2);
  options.step.accumulate_order = AccumulateOrder::Tree;
  options.step.shard_optimizer = is_sharded;
  options.step.optimizer.kind = OptimizerKind::AdamW;
  options.fit.batch_size = 32;
  options.fit.steps = 3;
  const std::vector<int> boundaries = {0, 1, 3};
  std::vector<std::unique_ptr<StageBody>> bodies;
  bodies.push_back(build_stage(
      parse_model("mlp:64-96-96-10"), boundaries, endpoint.rank().value % 2, options.step.seed));
  if (endpoint.rank() == Rank{3})
    bodies[0] = std::make_unique<OneInfinity>(std::move(bodies[0]), index);
  Trainer trainer(rank_parts({generate("1f1b", {.ranks = 2, .micro_batches = 2})},
                             std::move(bodies),
                             options,
                             GridPosition(endpoint, Grid(2, 2)),
                             group));
  PlaceCourse course;
  trainer.on_step = [&](const StepReport& report) { course.skipped.push_back(report.skipped); };
  trainer.fit(first_digits(89));
  course.weights = trainer.weights_hash();
  return course;
}

TEST(GridVerdict, OneInfinity_SameResultOnEveryRank) {
  for (const bool is_sharded : {false, true})
    for (const std::size_t index : {0U, 9215U}) {  // in the first and in the last block of it
      SCOPED_TRACE(std::to_string(index) + (is_sharded ? " sharded" : ""));
      std::mutex mutex;
      std::vector<PlaceCourse> courses;
      on_ranks(4, [&](Endpoint& endpoint, ProcessGroup& group) {
        PlaceCourse course = course_of_place(endpoint, group, is_sharded, index);
        const std::lock_guard lock(mutex);
        courses.push_back(std::move(course));
      });
      ASSERT_EQ(courses.size(), 4U);
      EXPECT_THAT(courses.front().skipped, ElementsAre(false, true, false));
      EXPECT_THAT(courses, Each(courses.front()));
    }
}

}  // namespace
}  // namespace millrace
