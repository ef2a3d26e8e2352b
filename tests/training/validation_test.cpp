// Validations of fit(): when they are due, what follows from them, and that training does not
// notice.
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "tests/training/first_digits.hpp"
#include "tests/training/on_ranks.hpp"
#include "tests/training/sample_files.hpp"
#include "tests/training/saved_runs.hpp"

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::ThrowsMessage;
using testing_training::first_digits;
using testing_training::fit_steps;
using testing_training::kModel;
using testing_training::kSavedModel;
using testing_training::on_ranks;
using testing_training::parts_on;
using testing_training::saved_options;

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

/// Three stages with dropout and batch norm; 60 samples to train on, 20 to validate by.
struct Runs {
  explicit Runs(const std::string& name = "one") : folder("validation_" + name) {}

  testing_files::Folder folder;
  Dataset train = first_digits(60), held = first_digits(20, 60);

  [[nodiscard]] TestOptions options(std::int64_t every, std::optional<ValidationMetric> best = {}) {
    TestOptions options = saved_options(folder.path(), 3);
    options.validation.every_steps = every;
    options.validation.keep_best = best;
    return options;
  }
};

TEST(Validation, Fit_KeepsItsBits) {
  Runs runs;
  TestOptions options = runs.options(2);
  options.save.folder.clear();
  options.step.accumulate = 2;
  Trainer without = trainer_of(parse_model(kSavedModel), options);
  const FitReport plain = without.fit(runs.train);
  Trainer with = trainer_of(parse_model(kSavedModel), options);
  const FitReport report = with.fit(runs.train, {}, &runs.held);

  EXPECT_EQ(with.weights_hash(), without.weights_hash());
  ASSERT_THAT(report.validations, SizeIs(6));
  EXPECT_THAT(plain.validations, IsEmpty());
  EXPECT_EQ(report.validations[5].step, 12);
  EXPECT_EQ(report.validations[5].score.mean_loss(), with.evaluate(runs.held).mean_loss());
  for (std::size_t i = 0; i < plain.epochs.size(); ++i)
    EXPECT_EQ(report.epochs[i].loss.sum, plain.epochs[i].loss.sum);
}

TEST(Validation, DefaultInterval_IsAnEpoch) {
  Runs runs;
  TestOptions options = runs.options(1);
  options.validation.every_steps = {};
  options.save.folder.clear();
  Trainer trainer = trainer_of(parse_model(kSavedModel), options);
  std::vector<std::int64_t> heard;
  trainer.on_validation = [&](const ValidationReport& report) { heard.push_back(report.step); };
  trainer.fit(runs.train, {}, &runs.held);
  EXPECT_THAT(heard, ElementsAre(3, 6, 9, 12));
}

TEST(Validation, Record_HasItsResultAndNotItsTime) {
  Runs runs;
  TestOptions options = runs.options(2);
  options.save.folder.clear();
  options.watch.records = true;
  options.run.executor_options.record_timeline = true;
  Trainer trainer = trainer_of(parse_model(kSavedModel), options);
  StepTotals totals;
  RunHistory history;
  std::vector<std::string> lines;
  trainer.on_validation = [](const ValidationReport&) {};
  trainer.on_record = [&](const StepRecord& record) {
    EXPECT_EQ(std::isnan(record.validation_loss), record.step == 1);
    const StepRecord read = read_record(json_line(record));
    EXPECT_TRUE(read.validates);
    EXPECT_EQ(json_line(read), json_line(record));
    EXPECT_EQ(csv_line(read_record(csv_line(record), csv_columns(record))), csv_line(record));
    totals.add(record);
    history.add(record);
    lines.push_back(prometheus_text(totals, record));
  };
  const Dataset held = first_digits(1600, 100);
  const auto start = std::chrono::steady_clock::now();
  const FitReport report = trainer.fit(runs.train, {}, &held);
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
  double validations = 0;
  for (const ValidationReport& validation : report.validations) validations += validation.seconds;
  EXPECT_LE(totals.seconds() + validations, wall.count());  // they do not overlap
  EXPECT_LE(report.seconds + validations, wall.count());

  EXPECT_THAT(lines.front(), HasSubstr("\nmillrace_validation_loss NaN\n"));
  EXPECT_THAT(lines.back(), HasSubstr("\nmillrace_validation_loss "));
  for (const std::size_t step : {2U, 3U})
    EXPECT_EQ(history.points()[step - 1].validation_accuracy,
              report.validations[0].score.accuracy());
  EXPECT_EQ(history.points()[11].validation_loss, report.validations.back().score.mean_loss());
  EXPECT_THAT(draw_page({"t", "s", history, totals, trainer.executor().program(), {}}),
              HasSubstr("aria-label=\"validation loss\""));
}

TEST(Validation, OptionsWithoutData_AreRejected) {
  Runs runs;
  const auto message = [&](auto change, bool validates) {
    TestOptions options = runs.options(2);
    change(options);
    Trainer trainer = trainer_of(parse_model(kSavedModel), options);
    try {
      validates ? trainer.fit(runs.train, {}, &runs.held) : trainer.fit(runs.train);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto best = [](TestOptions& o) { o.validation.keep_best = ValidationMetric::Loss; };
  EXPECT_EQ(message(best, false), "keep_best loss: needs validation");
  EXPECT_EQ(message([](TestOptions& o) { o.validation.early_stopping = 3; }, false),
            "early_stopping 3: needs validation");
  EXPECT_EQ(message(
                [&](TestOptions& o) {
                  best(o);
                  o.save.folder.clear();
                },
                true),
            "keep_best loss: needs save_folder");
}

/// The losses of a run whose learning rate is too large from the third step on: it gets worse.
TestOptions worsening(Runs& runs, std::int64_t most = 0) {
  TestOptions options = runs.options(1, ValidationMetric::Loss);
  options.step.optimizer = optimizer_defaults(OptimizerKind::Sgd);
  options.step.clip_norm = {};
  options.step.learning_rate = {.kind = LearningRateKind::Linear, .base = 3, .warm_up = 30};
  options.save.keep = 1;
  options.validation.early_stopping = most;
  return options;
}

std::int64_t step_of_best(const FitReport& report) {
  const ValidationReport* best = nullptr;
  for (const ValidationReport& validation : report.validations)
    if (best == nullptr || validation.score.mean_loss() < best->score.mean_loss())
      best = &validation;
  return best->step;
}

TEST(BestCheckpoint, StaysWithTheNewest) {
  Runs runs;
  Trainer trainer = trainer_of(parse_model(kSavedModel), worsening(runs));
  const FitReport report = trainer.fit(runs.train, {}, &runs.held);
  const std::int64_t best = step_of_best(report);
  ASSERT_LT(best, 12) << "the run must get worse";

  EXPECT_THAT(find_checkpoints(runs.folder.path()),
              ElementsAre(CheckpointPlace{runs.folder.path() + "/step-0000000012", 12, 0},
                          testing::Field(&CheckpointPlace::step, best)));
  const std::string folder = resolve_best(runs.folder.path() + "/best");
  EXPECT_EQ(Checkpoint(folder).manifest().counters.mini_batches, best);

  Trainer again = trainer_of(parse_model(kSavedModel), worsening(runs));
  const ResumeReport resumed = again.resume(runs.folder.path() + "/best");
  EXPECT_EQ(resumed.folder, folder);
  EXPECT_THAT(resumed.superseded, ElementsAre(HasSubstr("step-0000000012")));
  EXPECT_EQ(again.evaluate(runs.held).mean_loss(),
            report.validations[static_cast<std::size_t>(best - 1)].score.mean_loss());
  again.fit(runs.train, {}, &runs.held);
  EXPECT_EQ(again.weights_hash(), trainer.weights_hash());
  EXPECT_TRUE(std::filesystem::exists(runs.folder.path() + "/superseded-step-0000000012"));
}

TEST(BestCheckpoint, ResumedRun_DoesNotForgetIt) {
  Runs whole("whole"), halves("halves");
  Trainer trainer = trainer_of(parse_model(kSavedModel), worsening(whole));
  trainer.fit(whole.train, {}, &whole.held);
  for (const int stop : {5, 4, 9}) {
    Trainer part = trainer_of(parse_model(kSavedModel), worsening(halves));
    if (!find_checkpoints(halves.folder.path()).empty()) part.resume(halves.folder.path());
    std::int64_t left = stop;
    std::stop_source source;
    part.on_step = [&](const StepReport&) {
      if (--left == 0) source.request_stop();
    };
    part.fit(halves.train, source.get_token(), &halves.held);
  }
  const auto manifest = [](const Runs& runs) {
    return testing_training::bytes_in(runs.folder.path() + "/step-0000000012/manifest.json");
  };
  EXPECT_EQ(manifest(halves), manifest(whole));
  EXPECT_EQ(resolve_best(halves.folder.path() + "/best").substr(halves.folder.path().size()),
            resolve_best(whole.folder.path() + "/best").substr(whole.folder.path().size()));
}

TEST(BestCheckpoint, FailedValidation_IsRepeatedAfterResume) {
  Runs whole("whole"), broken("broken");
  Trainer trainer = trainer_of(parse_model(kSavedModel), worsening(whole));
  trainer.fit(whole.train, {}, &whole.held);
  Trainer failing = trainer_of(parse_model(kSavedModel), worsening(broken));
  failing.on_step = [&](const StepReport& report) {
    if (report.global_step == 4) throw Error("no validation");
  };
  EXPECT_THROW(failing.fit(broken.train, {}, &broken.held), Error);
  Trainer again = trainer_of(parse_model(kSavedModel), worsening(broken));
  again.resume(broken.folder.path());
  const FitReport report = again.fit(broken.train, {}, &broken.held);
  EXPECT_EQ(report.validations.front().step, 4);
  EXPECT_EQ(again.state().counters(), trainer.state().counters());
}

TEST(BestCheckpoint, OtherMetricOrData_BeginsAgain) {
  const Dataset other = first_digits(10, 80);
  for (const bool changes_data : {false, true}) {
    Runs runs;
    Trainer trainer = trainer_of(parse_model(kSavedModel), worsening(runs));
    trainer.fit(runs.train, {}, &runs.held);
    ASSERT_LT(trainer.state().counters().validation.best_step, 12);
    TestOptions options = worsening(runs);
    options.fit.epochs = 5;
    if (!changes_data) options.validation.keep_best = ValidationMetric::Accuracy;
    Trainer again = trainer_of(parse_model(kSavedModel), options);
    again.resume(runs.folder.path());
    const FitReport report = again.fit(runs.train, {}, changes_data ? &other : &runs.held);
    EXPECT_EQ(report.validations.front().step, 12);
    EXPECT_GE(again.state().counters().validation.best_step, 12);
    EXPECT_EQ(again.state().counters().validation.metric, options.validation.metric());
  }
}

TEST(EarlyStopping, ResumedRun_KeepsItsCount) {
  Runs whole("whole"), halves("halves");
  Trainer trainer = trainer_of(parse_model(kSavedModel), worsening(whole, 3));
  const FitReport report = trainer.fit(whole.train, {}, &whole.held);
  const std::int64_t last = report.validations.back().step;
  EXPECT_FALSE(report.stopped);
  EXPECT_THAT(report.early_stop, HasSubstr("did not improve in 3 validations"));
  ASSERT_LT(last, 12);

  Trainer first = trainer_of(parse_model(kSavedModel), worsening(halves, 3));
  std::stop_source stop;
  first.on_validation = [&](const ValidationReport& validation) {
    if (validation.without_improvement == 2) stop.request_stop();
  };
  EXPECT_TRUE(first.fit(halves.train, stop.get_token(), &halves.held).stopped);
  Trainer second = trainer_of(parse_model(kSavedModel), worsening(halves, 3));
  second.resume(halves.folder.path());
  const FitReport rest = second.fit(halves.train, {}, &halves.held);
  ASSERT_THAT(rest.validations, SizeIs(1));
  EXPECT_EQ(rest.validations[0].step, last);
  EXPECT_EQ(rest.early_stop, report.early_stop);

  Trainer third = trainer_of(parse_model(kSavedModel), worsening(halves, 3));
  third.resume(halves.folder.path());
  EXPECT_TRUE(third.is_finished());
  Trainer longer = trainer_of(parse_model(kSavedModel), worsening(halves, 4));
  longer.resume(halves.folder.path());
  EXPECT_FALSE(longer.is_finished());
}

TEST(Validation, Ranks_ValidateAsOneProcess) {
  Runs one("one"), many("many");
  Trainer trainer = trainer_of(parse_model(kModel), worsening(one, 3));
  trainer.fit(one.train, {}, &one.held);
  const ModelSpec model = parse_model(kModel);
  on_ranks(3, [&](Endpoint& endpoint, ProcessGroup& group) {
    const TestOptions options = worsening(many, 3);
    Trainer rank(parts_on(options, endpoint, group, model));
    rank.fit(many.train, {}, &many.held);
    EXPECT_EQ(rank.state().counters(), trainer.state().counters());
    EXPECT_EQ(rank.weights_hash(), trainer.weights_hash());
  });
  const std::string best = resolve_best(many.folder.path() + "/best");
  EXPECT_EQ(testing_training::files_in(best),
            testing_training::files_in(resolve_best(one.folder.path() + "/best")));
}

TEST(Validation, DataOnSomeRanks_IsRejectedOnAll) {
  Runs runs;
  TestOptions options = runs.options(2);
  options.save.folder.clear();
  on_ranks(2, [&](Endpoint& endpoint, ProcessGroup& group) {
    Trainer rank(parts_on(options, endpoint, group));
    EXPECT_THAT(
        [&] { group.rank() == 0 ? rank.fit(runs.train, {}, &runs.held) : rank.fit(runs.train); },
        ThrowsMessage<Mismatch>(
            HasSubstr("number of samples differs: rank 0 has '20', rank 1 has '0'")));
  });
}

}  // namespace
}  // namespace millrace
