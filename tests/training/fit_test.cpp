// fit() over mini-batches of the user's: from any position, to the end that the options name.
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "tests/training/first_digits.hpp"

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing_training::first_digits;
using testing_training::kModel;
using testing_training::plain_options;

TestOptions options_of_epochs(std::int64_t epochs) {
  TestOptions options = plain_options(2, 2);
  options.fit.batch_size = 10;
  options.fit.epochs = epochs;
  return options;
}

/// Numbers of the epochs that were told, and of their mini-batches.
struct Heard {
  explicit Heard(Trainer& trainer) {
    trainer.on_step = [this](const StepReport& report) { batches.push_back(report.batch); };
    trainer.on_epoch = [this](const EpochReport& report) { epochs.push_back(report.epoch); };
  }
  std::vector<std::int64_t> batches, epochs;
};

TEST(Fit, BeginsWhereItsMiniBatchesDo) {
  const Dataset data = first_digits(35);  // mini-batches 0 to 3
  Trainer trainer = trainer_of(parse_model(kModel), options_of_epochs(3));
  Heard heard(trainer);
  Loader loader(data, trainer.loader_options());
  loader.seek({.epoch = 1, .batch = 2});
  const FitReport report = trainer.fit(loader);

  EXPECT_THAT(heard.batches, ElementsAre(2, 3, 0, 1, 2, 3));
  EXPECT_THAT(heard.epochs, ElementsAre(1, 2));
  EXPECT_EQ(report.samples, 15 + 35);
  EXPECT_EQ(trainer.state().counters().position, (DataPosition{3, 0}));

  Trainer by_hand = trainer_of(parse_model(kModel), options_of_epochs(3));
  loader.seek({.epoch = 1, .batch = 2});
  for (int step = 0; step < 6; ++step) by_hand.step(loader.next());
  EXPECT_EQ(trainer.weights_hash(), by_hand.weights_hash());
}

TEST(Fit, StopsAfterItsStepsWhereverItBegan) {
  const Dataset data = first_digits(35);
  TestOptions options = options_of_epochs(0);
  options.fit.steps = 5;
  Trainer trainer(parse_model(kModel), options.pipeline, options);
  Heard heard(trainer);
  Loader loader(data, trainer.loader_options());
  loader.seek({.epoch = 0, .batch = 3});
  trainer.fit(loader);
  EXPECT_THAT(heard.batches, ElementsAre(3, 0, 1, 2, 3));
  EXPECT_THAT(heard.epochs, ElementsAre(0, 1));

  heard.batches.clear();
  trainer.fit(data);  // from the beginning: another fit
  EXPECT_THAT(heard.batches, ElementsAre(0, 1, 2, 3, 0));
}

/// Mini-batch after mini-batch in the order of the data; does not tell how many there are.
class InOrder final : public BatchSource {
 public:
  InOrder(const Dataset& data, std::int64_t size) : data_(data), size_(size) {}

  Batch& next() override {
    std::vector<std::int32_t> rows;
    const std::int64_t first = position_.batch * size_;
    for (std::int64_t row = first; row < std::min(first + size_, data_.size()); ++row)
      rows.push_back(static_cast<std::int32_t>(row));
    batch_.fill(data_, rows, 2);
    batch_.epoch = position_.epoch;
    batch_.number = position_.batch++;
    if (position_.batch * size_ >= data_.size()) position_ = {position_.epoch + 1, 0};
    return batch_;
  }
  [[nodiscard]] DataPosition position() const override { return position_; }
  void seek(const DataPosition& position) override { position_ = position; }

 private:
  const Dataset& data_;
  std::int64_t size_;
  DataPosition position_;
  Batch batch_;
};

TEST(Fit, TakesMiniBatchesOfTheUsers) {
  const Dataset data = first_digits(35);
  Trainer trainer = trainer_of(parse_model(kModel), options_of_epochs(2));
  Heard heard(trainer);
  InOrder batches(data, 20);
  trainer.fit(batches);
  EXPECT_THAT(heard.batches, ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(heard.epochs, ElementsAre(0, 1));

  Trainer by_hand = trainer_of(parse_model(kModel), options_of_epochs(2));
  batches.seek({});
  for (int step = 0; step < 4; ++step) by_hand.step(batches.next());
  EXPECT_EQ(trainer.weights_hash(), by_hand.weights_hash());
}

TEST(Fit, DecayingRate_NeedsTheNumberOfSteps) {
  const Dataset data = first_digits(35);
  TestOptions options = options_of_epochs(2);
  options.step.learning_rate = {.kind = LearningRateKind::Linear, .base = 0.8};
  Trainer trainer(parse_model(kModel), options.pipeline, options);
  InOrder batches(data, 20);
  try {
    trainer.fit(batches);
    ADD_FAILURE() << "no exception";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("give total_updates, steps, or"));
  }
  options.fit.steps = 4;
  Trainer told(parse_model(kModel), options.pipeline, options);
  std::vector<double> rates;
  told.on_step = [&](const StepReport& report) { rates.push_back(report.learning_rate); };
  told.fit(batches);
  EXPECT_THAT(rates,
              ElementsAre(testing::DoubleEq(0.8),
                          testing::DoubleEq(0.6),
                          testing::DoubleEq(0.4),
                          testing::DoubleEq(0.2)));
}

}  // namespace
}  // namespace millrace
