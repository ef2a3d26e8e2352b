// A list of tensors that is too short or too long is one message, at the pass that gave it, and
// never trained on.
#include <functional>
#include <map>

#include <gmock/gmock.h>

#include "run/executor_conformance.hpp"
#include "scheduler/run/interpreter.hpp"

namespace millrace::testing_run {

namespace {

using testing::HasSubstr;

// An interpreter looks at its program for as long as it lives.
static_assert(std::is_constructible_v<Interpreter, const Program&, std::span<const HostedStage>>);
static_assert(!std::is_constructible_v<Interpreter, Program, std::span<const HostedStage>>);

/// What a pass gives: F the outputs, I the gradients of the inputs.
using GiveCount =
    std::function<std::size_t(Op op, Stage stage, const Unit& unit, std::size_t right)>;

TensorList tensors(std::size_t count) {
  TensorList list;
  for (std::size_t i = 0; i < count; ++i) list.push_back(Tensor(DType::F32, {1, 1}));
  return list;
}

/// Two tensors cross every border, unless `count` says otherwise; the data give one.
class CountedStage final : public StageBody {
 public:
  CountedStage(Stage stage, bool last, const GiveCount& count)
      : stage_(stage), last_(last), count_(count) {}

  TensorList forward(const PassContext& context, TensorList) override {
    if (last_) context.loss->weight += 1;
    return given(Op::Forward, context, last_ ? 0 : 2);
  }
  TensorList backward_input(const PassContext& context, TensorList) override {
    return given(Op::BackwardInput, context, stage_.value == 0 ? 0 : 2);
  }
  void backward_weight(const PassContext&) override {}

 private:
  [[nodiscard]] TensorList given(Op op, const PassContext& context, std::size_t right) const {
    return tensors(count_ ? count_(op, stage_, context.unit(), right) : right);
  }

  Stage stage_;
  bool last_;
  const GiveCount& count_;
};

class CountedData final : public StepData {
 public:
  TensorList inputs(const Unit& unit) override {
    return tensors(unit.micro_batch == short_of ? 0 : 1);
  }
  TensorList targets(const Unit&) override { return {}; }
  [[nodiscard]] std::int64_t first_sample(const Unit&) const override { return 0; }

  MicroBatch short_of{-1};
};

class TensorCountsTest : public testing::TestWithParam<ExecutorUnderTest> {
 protected:
  TensorCountsTest() {
    for (int s = 0; s < program_.shape.stages(); ++s) {
      bodies_.push_back(std::make_unique<CountedStage>(Stage{s}, s == 2, count));
      hosted_.push_back({Replica{0}, Stage{s}, bodies_.back().get()});
    }
    executor_ = GetParam().make(program_, hosted_);
  }

  /// The error of a step; empty when it had none.
  std::string fault() {
    try {
      (void)run();
    } catch (const StepError& error) {
      return error.what();
    }
    return {};
  }

  StepResult run() { return executor_->run(data, ToyPipeline::settings()); }

  GiveCount count;
  CountedData data;

 private:
  Program program_ = generate("zb-h1", {.ranks = 3, .micro_batches = 4});
  std::vector<std::unique_ptr<CountedStage>> bodies_;
  std::vector<HostedStage> hosted_;
  std::unique_ptr<Executor> executor_;
};

INSTANTIATE_TEST_SUITE_P(All,
                         TensorCountsTest,
                         testing::ValuesIn(executors_under_test()),
                         name_of_executor);

TEST_P(TensorCountsTest, WrongCount_NamesThePass) {
  ASSERT_EQ(fault(), "");
  for (const Op op : {Op::Forward, Op::BackwardInput})
    for (int s = 0; s < 3; ++s)
      for (int i = 0; i < 4; ++i)
        for (const std::size_t given : {0U, 1U, 2U, 3U}) {
          const std::size_t right = s == (op == Op::Forward ? 2 : 0) ? 0 : 2;
          if (given == right) continue;
          // No stage takes the gradients of the data: there may be one for each.
          if (op == Op::BackwardInput && s == 0 && given == 1) continue;
          // The first unit says how many outputs there are; the second is checked by it.
          if (op == Op::Forward && s < 2 && i == 0 && given > 0) continue;
          count = [&](Op now, Stage stage, const Unit& unit, std::size_t otherwise) {
            const bool here = now == op && stage.value == s && unit.micro_batch.value == i;
            return here ? given : otherwise;
          };
          const std::string said = fault();

          EXPECT_THAT(said,
                      HasSubstr((op == Op::Forward ? "forward" : "backward-input") +
                                std::string(" of stage ") + std::to_string(s) + ", micro-batch " +
                                std::to_string(i)));
          EXPECT_THAT(said, HasSubstr("it gave " + std::to_string(given) + " tensor"));
          EXPECT_THAT(said, HasSubstr(" wanted "));
          count = nullptr;
          ASSERT_EQ(fault(), "") << "the step after: " << said;
        }
}

TEST_P(TensorCountsTest, MissingUnitOfData_IsNamed) {
  data.short_of = MicroBatch{2};
  EXPECT_THAT(fault(), HasSubstr("forward of stage 0, micro-batch 2"));
  EXPECT_THAT(fault(), HasSubstr("its inputs are 0 tensors, wanted 1"));
}

TEST_P(TensorCountsTest, Message_StatesWhatWasWantedAndWhy) {
  count = [](Op op, Stage stage, const Unit&, std::size_t right) {
    return op == Op::BackwardInput && stage.value == 1 ? std::size_t{1} : right;
  };
  EXPECT_EQ(fault(),
            "backward-input of stage 1, micro-batch 0 failed on rank 1: it gave 1 tensor, wanted "
            "2: a gradient for each input of its forward");
}

TEST_P(TensorCountsTest, NoTargets_StillHasALoss) {
  // CountedStage writes to context.loss, and the data have no targets.
  const StepResult result = run();
  EXPECT_EQ(result.loss.weight, 4);
}

}  // namespace

}  // namespace millrace::testing_run
