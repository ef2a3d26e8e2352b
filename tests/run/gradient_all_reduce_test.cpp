// The gradient all-reduce continues with any messages that are there, and end with the same bits
// in any order of arrival.
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/transport/in_process.hpp"
#include "run/toy_stage.hpp"
#include "scheduler/run/gradients.hpp"

namespace millrace::testing_run {
namespace {

using run::GradientAllReduce;
using Progress = run::GradientAllReduce::Progress;

constexpr Deadline kNever = Deadline::max();

/// A copy's stage with gradients of its own, its position and its sum; all on one thread.
struct SummedCopy {
  SummedCopy(InProcessHub& hub,
             int copies,
             int copy,
             const std::vector<std::vector<ElementRange>>& shares = {})
      : endpoint(hub.endpoint(Rank{copy})),
        position(*endpoint, Grid(copies, 1)),
        body(Stage{0}, true, true),
        sum({Replica{0}, Stage{0}, &body, shares}, position, false) {
    const auto numbers = body.parameters()[0]->gradient.as<float>();
    for (std::size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = 1.0F / static_cast<float>(3 + copy + 5 * static_cast<int>(i));
  }

  [[nodiscard]] std::vector<float> gradient() {
    const auto numbers = body.parameters()[0]->gradient.as<float>();
    return {numbers.begin(), numbers.end()};
  }
  void begin() { sum.start(settings, true, pool); }
  void go_on() { sum.go_on(settings, pool); }
  void finish() { sum.finish(settings, kNever, pool); }

  std::unique_ptr<Endpoint> endpoint;
  GridPosition position;
  ToyStage body;
  TensorPool pool;
  StepSettings settings;
  GradientAllReduce sum;
};

TEST(GradientAllReduce, UsesTheMessagesThatArrived) {
  InProcessHub hub(2);
  SummedCopy one(hub, 2, 0), other(hub, 2, 1);
  std::vector<float> expected = one.gradient();
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += other.gradient()[i];
  one.begin();
  one.go_on();
  EXPECT_EQ(one.sum.progress(), Progress::Started);  // the other has sent nothing
  other.begin();
  one.go_on();
  EXPECT_EQ(one.sum.progress(), Progress::Added);
  EXPECT_TRUE(one.sum.is_under_way());
  other.go_on();
  EXPECT_EQ(other.sum.progress(), Progress::Done);
  one.go_on();
  EXPECT_EQ(one.sum.progress(), Progress::Done);
  EXPECT_FALSE(one.sum.is_under_way());
  EXPECT_EQ(one.gradient(), expected);
  EXPECT_EQ(other.gradient(), expected);
  one.finish();  // nothing is left to do
  EXPECT_EQ(one.gradient(), expected);
}

TEST(GradientAllReduce, Shares_TakeOneRound) {
  InProcessHub hub(2);
  const std::size_t count =
      ToyStage(Stage{0}, true, true).parameters()[0]->gradient.as<float>().size();
  ASSERT_GE(count, 2U);
  const std::vector<std::vector<ElementRange>> shares = {{{0, 1}, {1, count}}};
  SummedCopy one(hub, 2, 0, shares), other(hub, 2, 1, shares);
  std::vector<float> of_one = one.gradient(), of_other = other.gradient();
  const std::vector<float> before_one = of_one, before_other = of_other;
  of_one[0] += before_other[0];
  for (std::size_t i = 1; i < count; ++i) of_other[i] = before_one[i] + before_other[i];
  one.begin();
  other.begin();
  one.go_on();
  EXPECT_EQ(one.sum.progress(), Progress::Done);
  other.finish();
  EXPECT_EQ(other.sum.progress(), Progress::Done);
  EXPECT_EQ(one.gradient(), of_one);
  EXPECT_EQ(other.gradient(), of_other);
}

TEST(GradientAllReduce, ThreeReplicas_AnyOrderSameBits) {
  std::vector<float> expected;
  for (int order = 0; order < 6; ++order) {
    InProcessHub hub(3);
    std::vector<std::unique_ptr<SummedCopy>> copies;
    for (int copy = 0; copy < 3; ++copy)
      copies.push_back(std::make_unique<SummedCopy>(hub, 3, copy));
    for (int round = 0; round < 4; ++round)
      for (int i = 0; i < 3; ++i) {
        SummedCopy& copy = *copies[static_cast<std::size_t>((i * (1 + order % 2) + order) % 3)];
        if (copy.sum.progress() == Progress::None)
          copy.begin();
        else
          copy.go_on();
      }
    if (expected.empty()) expected = copies[0]->gradient();
    for (const auto& copy : copies) {
      EXPECT_EQ(copy->sum.progress(), Progress::Done) << order;
      EXPECT_EQ(copy->gradient(), expected) << order;
    }
  }
}

}  // namespace
}  // namespace millrace::testing_run
