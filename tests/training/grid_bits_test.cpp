// Copies of a pipeline side by side: one hash for every grid, with the gradients added by a tree;
// and what every process of a grid knows.
#include <cmath>
#include <mutex>
#include <ostream>
#include <string>
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
using testing::HasSubstr;
using testing::SizeIs;
using testing_training::first_digits;
using testing_training::on_ranks;
using testing_training::plain_options;

constexpr int kMicroBatchesInAll = 16;
const char* const kGridModel = "mlp:64-16-16-16-16-16-16-16-10,dropout=0.2";

/// A grid, and how its copies run their share.
struct GridJob {
  int data = 1, places = 1;
  std::string schedule = "1f1b";
  int passes = 1;
  AccumulateOrder order = AccumulateOrder::Tree;
  std::vector<std::vector<std::string>> tied = {};
};

/// Mini-batches of 40, 40 and 9 samples: of the last, the second half of the micro-batches is
/// empty.
TestOptions options_of(const GridJob& job) {
  TestOptions options = plain_options(job.places, kMicroBatchesInAll / job.data / job.passes);
  options.pipeline.schedule = job.schedule;
  options.step.accumulate = job.passes;
  options.step.accumulate_order = job.order;
  options.step.optimizer.kind = OptimizerKind::AdamW;
  options.step.clip_norm = 0.5;
  options.step.learning_rate.base = 0.01;
  options.fit.batch_size = 40;
  options.fit.epochs = 2;
  options.step.tied = job.tied;
  return options;
}

/// What a process of the grid has to tell; the same of all.
struct GridCourse {
  std::vector<double> losses, norms;
  std::string weights;
  double score = 0;  // of as many samples at a time as a copy has micro-batches

  friend bool operator==(const GridCourse& a, const GridCourse& b) {
    return a.losses == b.losses && a.norms == b.norms && a.weights == b.weights &&
           std::abs(a.score - b.score) < 1e-6;
  }
  friend std::ostream& operator<<(std::ostream& stream, const GridCourse& course) {
    for (const double loss : course.losses) stream << loss << ' ';
    for (const double norm : course.norms) stream << norm << ' ';
    return stream << course.weights << ' ' << course.score;
  }
};

GridCourse grid_course_of(Trainer& trainer) {
  GridCourse course;
  trainer.on_step = [&](const StepReport& report) {
    course.losses.push_back(report.mean_loss());
    course.norms.push_back(report.gradient_norm);
  };
  trainer.fit(first_digits(89));
  course.weights = trainer.weights_hash();
  course.score = trainer.evaluate(first_digits(50, 89), 50).mean_loss();
  return course;
}

GridCourse course_on_grid(const GridJob& job) {
  const TestOptions options = options_of(job);
  std::mutex mutex;
  std::vector<GridCourse> courses;
  on_ranks(job.data * job.places, [&](Endpoint& endpoint, ProcessGroup& group) {
    const Program program = generate(
        job.schedule, {.ranks = job.places, .micro_batches = options.pipeline.shape.micro_batches});
    const GridPosition seat(endpoint, Grid(job.data, job.places));
    Trainer trainer(rank_parts(parse_model(kGridModel), {program}, options, seat, group));
    GridCourse course = grid_course_of(trainer);
    const std::lock_guard lock(mutex);
    courses.push_back(std::move(course));
  });
  EXPECT_THAT(courses, SizeIs(static_cast<std::size_t>(job.data * job.places)));
  if (courses.empty()) return {};
  EXPECT_THAT(courses, Each(courses.front()));
  return courses.front();
}

GridCourse course_alone(const GridJob& job) {
  Trainer trainer = trainer_of(parse_model(kGridModel), options_of(job));
  return grid_course_of(trainer);
}

TEST(GridBits, EveryGridWithTree_SameBits) {
  const GridCourse expected = course_alone({});
  EXPECT_THAT(expected.losses, SizeIs(6));
  const std::vector<GridJob> jobs = {{.data = 2},
                                     {.data = 4},
                                     {.data = 8},
                                     {.data = 2, .places = 2},
                                     {.data = 2, .places = 2, .schedule = "zb-h1"},
                                     {.data = 4, .places = 2, .schedule = "zb-v"},
                                     {.data = 2, .places = 4, .schedule = "interleaved"},
                                     {.data = 2, .places = 2, .schedule = "gpipe", .passes = 2},
                                     {.data = 4, .places = 2, .passes = 4}};
  for (const GridJob& job : jobs)
    EXPECT_EQ(course_on_grid(job), expected)
        << job.data << " x " << job.places << ", " << job.schedule << ", " << job.passes;
}

TEST(GridBits, OfTiedWeightsToo) {
  const std::vector<std::vector<std::string>> tied = {
      {"layers.2.weight", "layers.4.weight", "layers.8.weight"}};
  const GridCourse expected = course_alone({.tied = tied});
  for (const GridJob& job : {GridJob{.data = 2, .places = 2, .tied = tied},
                             GridJob{.data = 2, .places = 4, .schedule = "zb-h1", .tied = tied},
                             GridJob{.data = 4, .tied = tied}})
    EXPECT_EQ(course_on_grid(job), expected) << job.data << " x " << job.places;
}

/// Copy behind copy: the same for every number of places.
TEST(GridBits, InAscendingOrderDependOnTheCopiesAlone) {
  const AccumulateOrder ascending = AccumulateOrder::Ascending;
  const GridCourse one = course_alone({.order = ascending});
  const GridCourse two = course_on_grid({.data = 2, .order = ascending});
  EXPECT_NE(two.weights, one.weights);
  EXPECT_NEAR(two.score, one.score, 1e-5);
  EXPECT_EQ(course_on_grid({.data = 2, .places = 2, .schedule = "zb-h1", .order = ascending}), two);
  EXPECT_EQ(course_on_grid({.data = 2, .passes = 2, .order = ascending}), two);
}

/// Of bidirectional pipelines the copies of a stage add up what the copies of the pipeline made.
TEST(GridBits, OfBidirectionalPipelinesAreTheSameEveryTime) {
  const GridJob job{
      .data = 2, .places = 2, .schedule = "chimera", .order = AccumulateOrder::Ascending};
  const GridCourse course = course_on_grid(job);
  EXPECT_EQ(course_on_grid(job), course);
  EXPECT_NEAR(course.score, course_alone({.order = AccumulateOrder::Ascending}).score, 1e-5);
}

TEST(GridBits, NeedAPowerOfTwo) {
  on_ranks(3, [&](Endpoint& endpoint, ProcessGroup& group) {
    TestOptions options = options_of({});
    const Program program =
        generate("1f1b", {.ranks = 1, .micro_batches = options.pipeline.shape.micro_batches});
    try {
      Trainer trainer(rank_parts(
          parse_model(kGridModel), {program}, options, GridPosition(endpoint, Grid(3, 1)), group));
      ADD_FAILURE() << "not refused";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("accumulate_order tree: 3 copies of the pipeline are no node of the "
                            "tree each; 2 and 4 would be"));
    }
  });
}

}  // namespace
}  // namespace millrace
