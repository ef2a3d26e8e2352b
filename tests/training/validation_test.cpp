// Validations of fit(), the best checkpoint and early stopping; training does not notice them.
#include <chrono>
#include <cmath>
#include <filesystem>
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

/// In the second pass of a validation, the first one or the one after the last step.
TEST(Validation, StopDuringIt_IsPromptAndRepeatsIt) {
  for (const std::int64_t every : {2, 12}) {
    Runs whole("whole"), halves("halves");
    whole.held = first_digits(60, 60);
    halves.held = first_digits(60, 60);
    Trainer trainer =
        trainer_of(parse_model(kSavedModel), whole.options(every, ValidationMetric::Loss));
    const FitReport report = trainer.fit(whole.train, {}, &whole.held);

    const TestOptions options = halves.options(every, ValidationMetric::Loss);
    Trainer first = trainer_of(parse_model(kSavedModel), options);
    std::stop_source stop;
    int asked = 0;
    first.on_pass = [&] {
      if (++asked == 2) stop.request_stop();
    };
    const FitReport stopped = first.fit(halves.train, stop.get_token(), &halves.held);
    EXPECT_TRUE(stopped.stopped);
    EXPECT_THAT(stopped.validations, IsEmpty());
    EXPECT_EQ(asked, 2);
    EXPECT_EQ(first.state().counters().validation.step, 0);
    EXPECT_EQ(find_checkpoints(halves.folder.path()).front().step, every);

    Trainer second = trainer_of(parse_model(kSavedModel), options);
    second.resume(halves.folder.path());
    EXPECT_FALSE(second.is_finished());
    const FitReport rest = second.fit(halves.train, {}, &halves.held);
    ASSERT_THAT(rest.validations, SizeIs(report.validations.size()));
    EXPECT_EQ(rest.validations[0].step, every);
    EXPECT_EQ(rest.validations[0].score.loss.sum, report.validations[0].score.loss.sum);
    EXPECT_EQ(second.weights_hash(), trainer.weights_hash());
    EXPECT_EQ(second.state().counters(), trainer.state().counters());
    Trainer third = trainer_of(parse_model(kSavedModel), options);
    third.resume(halves.folder.path());
    // The checkpoint of the last step is not written again for its validation, which is repeated.
    EXPECT_EQ(third.is_finished(), every == 2);
  }
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
