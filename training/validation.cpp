// When a validation is due and what follows from it, as functions of numbers; and the validations
// of fit().
#include <cmath>
#include <fmt/format.h>

#include "millrace/core/error.hpp"
#include "millrace/training/step_times.hpp"
#include "training/agreement.hpp"
#include "training/trainer_state.hpp"

namespace millrace {
namespace {

double value_of(ValidationMetric metric, const Score& score) {
  return metric == ValidationMetric::Loss ? score.mean_loss() : score.accuracy();
}

/// By how much `value` is better than `other`; negative: it is worse.
double gain(ValidationMetric metric, double value, double other) {
  return metric == ValidationMetric::Loss ? other - value : value - other;
}

}  // namespace

std::string_view name_of(ValidationMetric metric) {
  return metric == ValidationMetric::Loss ? "loss" : "accuracy";
}

bool is_validation_due(const ValidationOptions& options,
                       std::int64_t step,
                       std::int64_t epoch,
                       std::int64_t batch) {
  if (step == 0) return false;
  if (options.every_steps) return step % *options.every_steps == 0;
  return batch == 0 && epoch > 0 && epoch % options.every_epochs == 0;
}

ValidationRecord next_record(ValidationRecord record,
                             const ValidationOptions& options,
                             std::int64_t step,
                             const Score& score) {
  const double value = value_of(record.metric, score);
  const bool is_number = std::isfinite(value);
  const auto gained = [&](double other) { return gain(record.metric, value, other); };
  record.step = step;
  if (options.keep_best && is_number && (record.best_step == 0 || gained(record.best) > 0)) {
    record.best = value;
    record.best_step = step;
  }
  const bool improves =
      is_number && (record.reference_step == 0 || (gained(record.reference) > 0 &&
                                                   gained(record.reference) >= options.min_delta));
  record.without_improvement = improves ? 0 : record.without_improvement + 1;
  if (improves) {
    record.reference = value;
    record.reference_step = step;
  }
  return record;
}

std::string early_stop(const ValidationOptions& options, const ValidationRecord& record) {
  const std::int64_t count = record.without_improvement;
  if (options.early_stopping == 0 || count < options.early_stopping) return {};
  std::string text = fmt::format("validation {} did not improve", name_of(record.metric));
  if (options.min_delta > 0) text += fmt::format(" by {}", options.min_delta);
  text += fmt::format(" in {} validation{}", count, count == 1 ? "" : "s");
  if (record.reference_step == 0) return text + "; it was never finite";
  return text +
         fmt::format("; it was {:.6g} after step {}", record.reference, record.reference_step);
}

void check_validation(const TrainerOptions& options, bool validates) {
  const auto need = [](std::string_view name, const std::string& value, std::string_view what) {
    throw InvalidParameter(named(name) + " " + value + ": needs " + named(what));
  };
  const ValidationOptions& given = options.validation;
  const std::string metric(name_of(given.metric()));
  if (given.keep_best && !validates) need("keep_best", metric, "validation");
  if (given.keep_best && options.save.folder.empty()) need("keep_best", metric, "save_folder");
  if (given.early_stopping > 0 && !validates)
    need("early_stopping", std::to_string(given.early_stopping), "validation");
}

/// With another metric or other data the comparison begins again.
void Trainer::State::begin_validation(const Dataset* data) {
  static const Dataset none;
  agree_on_data(group, data == nullptr ? none : *data, 0);
  check_validation(options, data != nullptr);
  validation.reset();
  if (data == nullptr) return;
  validation.emplace();
  ValidationRecord fresh{.metric = options.validation.metric()};
  for (const std::string& digest : group.gather(contents_digest(*data), Label::Data))
    if (fresh.data.empty()) fresh.data = digest;
  const ValidationRecord& before = store.counters().validation;
  if (before.metric == fresh.metric && before.data == fresh.data) return;
  count([&](TrainingCounters& counters) { counters.validation = fresh; });
}

std::optional<ValidationReport> Trainer::State::validate(const Dataset& data,
                                                         std::int64_t epoch,
                                                         const Pause& stops) {
  const std::int64_t step = store.counters().mini_batches;
  const double before = times.validation;
  Score score;
  {
    const Timed timed(times.validation);
    const auto add = [&](const StepResult& result) { score.add(result.loss, result.samples); };
    if (!evaluate(data, 0, add, stops)) return std::nullopt;
  }
  validation = score;
  const ValidationRecord record =
      next_record(store.counters().validation, options.validation, step, score);
  count([&](TrainingCounters& counters) { counters.validation = record; });
  return ValidationReport{.step = step,
                          .epoch = epoch,
                          .score = score,
                          .seconds = times.validation - before,
                          .is_best = record.best_step == step,
                          .is_last = !early_stop(options.validation, record).empty(),
                          .without_improvement = record.without_improvement};
}

}  // namespace millrace
