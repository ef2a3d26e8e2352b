// Looking at a model: predictions and scores of data sets and of data of one's own, and what a
// share of right predictions is a share of.
#include <algorithm>
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/scheduler/plan/generators.hpp"
#include "tests/training/first_digits.hpp"

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::SizeIs;
using testing_training::first_digits;
using testing_training::kModel;
using testing_training::plain_options;

std::vector<float> numbers_of(const Tensor& tensor) {
  const auto values = tensor.as<float>();
  return {values.begin(), values.end()};
}

std::int64_t right_rows(const Tensor& predictions, const Tensor& labels) {
  std::int64_t right = 0;
  const auto columns = static_cast<std::size_t>(predictions.columns());
  for (std::size_t row = 0; row < labels.as<std::int32_t>().size(); ++row) {
    const auto logits = predictions.as<float>().subspan(row * columns, columns);
    const auto best = std::ranges::max_element(logits) - logits.begin();
    right += best == labels.as<std::int32_t>()[row] ? 1 : 0;
  }
  return right;
}

TEST(Predict, AnyBatchesAndPartition_OneRowPerSample) {
  Dataset data = first_digits(61);
  TestOptions options = plain_options(1, 1);
  Trainer whole(parse_model(kModel), options.pipeline, options);
  const Tensor expected = whole.predict(data, 61);
  EXPECT_EQ(expected.dims(), (Dims{61, 10}));

  const std::int64_t right = right_rows(expected, data.targets[0].values);
  for (const char* executor : {"sequential", "flow-graph", "ranks"})
    for (const std::int64_t batch_size : {1, 16, 0}) {
      options = plain_options(3, 4);
      options.run.executor = executor;
      Trainer trainer(parse_model(kModel), options.pipeline, options);
      const std::string hash = trainer.weights_hash();
      const Tensor predicted = trainer.predict(data, batch_size);
      ASSERT_EQ(predicted.dims(), expected.dims());
      for (std::size_t i = 0; i < predicted.as<float>().size(); ++i)
        ASSERT_NEAR(predicted.as<float>()[i], expected.as<float>()[i], 1e-5);
      EXPECT_EQ(trainer.evaluate(data, batch_size).loss.correct, right);
      EXPECT_EQ(trainer.weights_hash(), hash);
    }
  data.targets.clear();
  EXPECT_EQ(numbers_of(whole.predict(data, 61)), numbers_of(expected));
}

TEST(Evaluate, CustomData_IsTheScoreOfThePass) {
  Trainer trainer = trainer_of(parse_model(kModel), plain_options(2, 4));
  Batch batch(first_digits(23), 4);
  const Score expected = trainer.evaluate(first_digits(23), 23);
  const Score score = trainer.evaluate(batch);

  EXPECT_EQ(score.loss.sum, expected.loss.sum);
  EXPECT_EQ(score.loss.correct, expected.loss.correct);
  EXPECT_EQ(score.samples, 23);
  EXPECT_EQ(score.accuracy(), static_cast<double>(score.loss.correct) / 23);
  const std::vector<TensorList> predictions = trainer.predict(batch);
  ASSERT_THAT(predictions, SizeIs(4));
  EXPECT_EQ(predictions[0][0].dims(), (Dims{6, 10}));
  EXPECT_EQ(predictions[3][0].dims(), (Dims{5, 10}));
}

TEST(Evaluate, OfNothingIsNothing) {
  Trainer trainer = trainer_of(parse_model(kModel), plain_options(2, 4));
  const Dataset nothing = first_digits(0);
  EXPECT_EQ(trainer.evaluate(nothing).accuracy(), 0);
  EXPECT_FALSE(trainer.predict(nothing));
}

/// Three tokens a sample, of which it finds two, and leaves padding unjudged.
class TokenStage final : public StageBody {
 public:
  explicit TokenStage(bool judges) : judges_(judges) {}

  TensorList forward(const PassContext& context, TensorList inputs) override {
    const std::int64_t rows = inputs[0].rows();
    *context.loss += {static_cast<double>(rows),
                      static_cast<double>(3 * rows) * (judges_ ? 0.5 : 1),
                      2 * rows,
                      judges_ ? 3 * rows : 0};
    return context.training ? TensorList() : std::move(inputs);
  }
  TensorList backward_input(const PassContext&, TensorList) override { return {}; }
  void backward_weight(const PassContext&) override {}

 private:
  bool judges_;
};

/// Micro-batches of one, two, three rows, without targets.
class Growing final : public StepData {
 public:
  TensorList inputs(const Unit& unit) override {
    return TensorList(Tensor(DType::F32, {unit.micro_batch.value + 1, 5}));
  }
  TensorList targets(const Unit&) override { return {}; }
  [[nodiscard]] std::int64_t first_sample(const Unit&) const override { return 0; }
};

TEST(Accuracy, IsAShareOfWhatTheLossJudged) {
  for (const bool judges : {true, false}) {
    std::vector<std::unique_ptr<StageBody>> bodies;
    bodies.push_back(std::make_unique<TokenStage>(judges));
    Trainer trainer({generate("gpipe", {.ranks = 1, .micro_batches = 3})},
                    std::move(bodies),
                    plain_options(1, 3));
    Growing data;
    const Score score = trainer.evaluate(data);
    EXPECT_DOUBLE_EQ(score.accuracy(), 2.0 / 3) << judges;
    EXPECT_EQ(score.samples, 6);
    // 9 or 18: half a weight for each of 18 tokens, or a whole one.
    EXPECT_EQ(trainer.step(data, judges ? 9 : 18).samples, 6);
  }
}

TEST(Accuracy, OfClassesIsAShareOfTargets) {
  const Score score{.loss = {.sum = 1, .weight = 12, .correct = 9, .evaluated = 12}, .samples = 3};
  EXPECT_DOUBLE_EQ(score.accuracy(), 0.75);
}

}  // namespace
}  // namespace millrace
