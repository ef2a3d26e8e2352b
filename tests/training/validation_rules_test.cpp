// When a validation is due and what follows from it, by numbers; and the samples that are held out.
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/training/reports.hpp"
#include "tests/training/first_digits.hpp"

namespace millrace {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;
using testing_training::first_digits;

Score score_of(double loss, std::int64_t correct = 0) {
  return {.loss = {.sum = 4 * loss, .weight = 4, .correct = correct}, .samples = 4};
}

/// The record after validations with these losses at steps 1, 2, ...
ValidationRecord after(const ValidationOptions& options, const std::vector<double>& losses) {
  ValidationRecord record{.metric = options.metric()};
  for (const double loss : losses)
    record = next_record(record, options, record.step + 1, score_of(loss));
  return record;
}

TEST(ValidationRules, EveryStepsOrEpochs_AreDue) {
  const ValidationOptions steps{.every_steps = 5};
  EXPECT_TRUE(is_validation_due(steps, 10, 1, 3));
  EXPECT_FALSE(is_validation_due(steps, 11, 2, 0));
  EXPECT_FALSE(is_validation_due(steps, 0, 0, 0));
  const ValidationOptions epochs{.every_epochs = 2};
  EXPECT_TRUE(is_validation_due(epochs, 8, 2, 0));
  EXPECT_FALSE(is_validation_due(epochs, 9, 2, 1));
  EXPECT_FALSE(is_validation_due(epochs, 4, 1, 0));
}

TEST(ValidationRules, Best_IsNeverReplacedByWorseOrEqual) {
  const ValidationOptions options{.keep_best = ValidationMetric::Loss};
  const ValidationRecord record = after(options, {4, 2, 2, 3});
  EXPECT_EQ(record.best_step, 2);
  EXPECT_EQ(record.best, 2);
  EXPECT_EQ(record.without_improvement, 2);
  EXPECT_EQ(after({}, {4, 2}).best_step, 0);  // keeps none
}

TEST(ValidationRules, Accuracy_IsBetterWhenLarger) {
  const ValidationOptions options{.keep_best = ValidationMetric::Accuracy};
  ValidationRecord record{.metric = ValidationMetric::Accuracy};
  record = next_record(record, options, 1, score_of(1, 2));
  record = next_record(record, options, 2, score_of(9, 3));
  record = next_record(record, options, 3, score_of(0, 1));
  EXPECT_EQ(record.best_step, 2);
  EXPECT_EQ(record.best, 0.75);
}

TEST(ValidationRules, MinDelta_CountsFromLastImprovement) {
  const ValidationOptions options{.early_stopping = 2, .min_delta = 0.5};
  EXPECT_EQ(after(options, {4, 3.75}).without_improvement, 1);
  EXPECT_EQ(after(options, {4, 3.75, 3.5}).without_improvement, 0);
  EXPECT_THAT(early_stop(options, after(options, {4, 3.75})), IsEmpty());
  EXPECT_EQ(early_stop(options, after(options, {4, 3.75, 3.75})),
            "validation loss did not improve by 0.5 in 2 validations; it was 4 after step 1");
  EXPECT_THAT(early_stop({.early_stopping = 0}, after({}, {1, 1, 1})), IsEmpty());
}

TEST(ValidationRules, ValuesNotFinite_AreNeverBest) {
  const ValidationOptions options{.keep_best = ValidationMetric::Loss, .early_stopping = 2};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const ValidationRecord record = after(options, {nan, std::numeric_limits<double>::infinity()});
  EXPECT_EQ(record.best_step, 0);
  EXPECT_THAT(early_stop(options, record), HasSubstr("it was never finite"));
  EXPECT_EQ(after(options, {nan, 3}).best_step, 2);
}

TEST(HoldOut, Fraction_TakesLastSamples) {
  const Dataset all = first_digits(40);
  const TrainTest parts = hold_out(all, 0.25);
  EXPECT_EQ(parts.train.size(), 30);
  EXPECT_EQ(contents_digest(parts.train), contents_digest(first_digits(30)));
  EXPECT_EQ(contents_digest(parts.test), contents_digest(first_digits(10, 30)));
  EXPECT_THAT([&] { static_cast<void>(hold_out(all, 1)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("must be above 0 and below 1")));
  EXPECT_THAT([&] { static_cast<void>(hold_out(first_digits(1), 0.5)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("has 1 samples, too few")));
}

std::string bytes_of(const SampleTensor& tensor) {
  const auto bytes = tensor.values.as<std::uint8_t>();
  return {bytes.begin(), bytes.end()};
}

TEST(HoldOut, Text_GivesTailThatNoWindowReads) {
  std::string text;
  for (int i = 0; i < 250; ++i) text += static_cast<char>('a' + i % 26);
  TrainTest data = text_samples("letters", text, {.positions = 4});
  const std::string train = bytes_of(data.train.targets[0]);
  const TrainTest parts = hold_out(data.train, 0.2);

  EXPECT_FALSE(parts.test.overlaps());
  EXPECT_EQ(parts.test.windows.positions, 4);
  EXPECT_EQ(bytes_of(parts.train.targets[0]) + train[179] + bytes_of(parts.test.targets[0]), train)
      << "one byte lies between";
  EXPECT_EQ(parts.train.inputs[0].rows(), 179);
  EXPECT_EQ(parts.test.inputs[0].rows(), 44);
}

TEST(HoldOut, Documents_AreSplitBetweenLines) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "line " + std::to_string(i % 10) + "\n";
  TrainTest data = text_samples("lines", text, {.positions = 8, .lengths = Lengths::Bucket});
  const std::int64_t all = data.train.size();
  const TrainTest parts = hold_out(data.train, 0.5);
  EXPECT_EQ(parts.train.size() + parts.test.size(), all);
  EXPECT_EQ(text_of_targets(parts.test).substr(0, 7), "line 5\n");
  EXPECT_NE(contents_digest(parts.train), contents_digest(parts.test));
}

}  // namespace
}  // namespace millrace
