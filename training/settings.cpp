// The table of settings, a row each, and its readers.
#include "training/settings.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <functional>
#include <limits>
#include <optional>
#include <string_view>

#include "millrace/core/error.hpp"
#include "training/named_settings.hpp"

namespace millrace {
namespace {

/// A setting as text, all digits of a number; empty where it is unset.
using TextOf = std::function<std::string(const TrainerOptions&)>;

struct Value {
  TextOf text;
  /// The allowed values, where the value is not one of them: "must be above 0".
  TextOf fault = {};
};

struct Setting {
  std::string_view name;
  std::string_view title = {};  ///< in a comparison, where it is not the name
  std::string_view saved = {};  ///< key in a manifest; empty: not saved
  Value value;
  bool agreed = true;  ///< ranks compare it

  [[nodiscard]] std::string title_text() const {
    std::string text(title.empty() ? name : title);
    std::ranges::replace(text, '_', ' ');
    return text;
  }
};

/// The numbers from `least` to below `most`.
struct Range {
  double least = 0;
  double most = std::numeric_limits<double>::infinity();
  bool has_least = true;  ///< false: values are above it

  [[nodiscard]] bool has(double value) const {
    return (has_least ? value >= least : value > least) && value < most;
  }

  [[nodiscard]] std::string fault() const {
    if (!has_least) return "must be above " + exact_text(least);
    return "must be at least " + exact_text(least) +
           (std::isinf(most) ? " and finite" : " and below " + exact_text(most));
  }
};

constexpr Range kFraction = {.most = 1};
constexpr Range kAboveZero = {.has_least = false};
constexpr std::int64_t kMost = 1'000'000'000;
constexpr std::int64_t kAnyCount = std::numeric_limits<std::int64_t>::max();

/// A number, or one that may be unset. `get` returns it.
template <class Get>
Value real(Get get, Range range = {}) {
  const auto number = [get](const TrainerOptions& options) {
    return std::optional<double>(get(options));
  };
  return {.text =
              [number](const TrainerOptions& options) {
                const auto value = number(options);
                return value ? exact_text(*value) : std::string("none");
              },
          .fault =
              [number, range](const TrainerOptions& options) {
                const auto value = number(options);
                return value && !range.has(*value) ? range.fault() : std::string();
              }};
}

/// An integer from `least` to `most`.
template <class Get>
Value integer(Get get, std::int64_t least, std::int64_t most = kMost) {
  return {.text = [get](const TrainerOptions& options) { return fmt::format("{}", get(options)); },
          .fault =
              [=](const TrainerOptions& options) {
                const std::int64_t value = get(options);
                return value < least || value > most
                           ? fmt::format("must be from {} to {}", least, most)
                           : std::string();
              }};
}

Value yes_or_no(bool TrainerOptions::*member) {
  return {[member](const TrainerOptions& options) { return options.*member ? "true" : "false"; }};
}

std::string frozen_text(const TrainerOptions& options) {
  return fmt::format("{}", fmt::join(options.frozen, " "));
}

std::string parameters_text(const TrainerOptions& options) {
  std::vector<std::string> groups;
  for (const ParameterGroup& group : options.parameters) groups.push_back(to_string(group));
  return fmt::format("{}", fmt::join(groups, " "));
}

std::string tied_text(const TrainerOptions& options) {
  std::vector<std::string> groups;
  for (const auto& names : options.tied)
    groups.push_back(fmt::format("{}", fmt::join(names, " = ")));
  return fmt::format("{}", fmt::join(groups, "; "));
}

using Options = const TrainerOptions&;

const std::vector<Setting>& settings() {
  static const std::vector<Setting> rows = {
      {.name = "accumulate",
       .title = "accumulated passes",
       .value = integer([](Options o) { return o.accumulate; }, 1, 1'000'000)},
      {.name = "accumulate_order",
       .title = "order of accumulation",
       .value = {[](Options o) -> std::string {
         return std::string(name_of(o.accumulate_order));
       }}},
      {.name = "optimizer", .value = {[](Options o) -> std::string {
                              return std::string(o.custom_optimizer ? "custom"
                                                                    : name_of(o.optimizer.kind));
                            }}},
      {.name = "momentum",
       .saved = "optimizer.momentum",
       .value = real([](Options o) { return o.optimizer.momentum; }, kFraction)},
      {.name = "beta1",
       .saved = "optimizer.beta1",
       .value = real([](Options o) { return o.optimizer.beta1; }, kFraction)},
      {.name = "beta2",
       .saved = "optimizer.beta2",
       .value = real([](Options o) { return o.optimizer.beta2; }, kFraction)},
      {.name = "epsilon",
       .saved = "optimizer.epsilon",
       .value = real([](Options o) { return o.optimizer.epsilon; }, kAboveZero)},
      {.name = "weight_decay", .saved = "optimizer.weight_decay", .value = real([](Options o) {
                                                                    return o.optimizer.weight_decay;
                                                                  })},
      {.name = "shard_optimizer", .value = yes_or_no(&TrainerOptions::shard_optimizer)},
      {.name = "lr",
       .title = "learning rate",
       .saved = "learning_rate.base",
       .value = real([](Options o) { return o.learning_rate.base; })},
      {.name = "learning_rate",
       .title = "learning-rate schedule",
       .saved = "learning_rate.curve",
       .value = {[](Options o) -> std::string { return to_string(o.learning_rate); }}},
      {.name = "warm_up",
       .title = "warm-up",
       .saved = "learning_rate.warm_up",
       .value = integer([](Options o) { return o.learning_rate.warm_up; }, 0)},
      {.name = "total_updates",
       .title = "updates in all",
       .saved = "learning_rate.total_updates",
       .value = integer([](Options o) { return o.learning_rate.total_updates; }, 0, kAnyCount)},
      {.name = "clip_norm",
       .saved = "clip_norm",
       .value = real([](Options o) { return o.clip_norm; }, kAboveZero)},
      {.name = "loss_scale", .saved = "loss_scale", .value = {[](Options o) -> std::string {
                                                      return o.loss_scale ? to_string(*o.loss_scale)
                                                                          : "by the precision";
                                                    }}},
      {.name = "max_skipped",
       .title = "skipped steps in a row",
       .saved = "max_skipped",
       .value = integer([](Options o) { return o.max_skipped; }, 1)},
      {.name = "parameters",
       .title = "parameter groups",
       .saved = "parameters",
       .value = {parameters_text}},
      {.name = "frozen", .title = "frozen parameters", .saved = "frozen", .value = {frozen_text}},
      {.name = "tied", .title = "tied weights", .value = {tied_text}},
      {.name = "seed",
       .value = {[](Options o) -> std::string { return fmt::format("{}", o.seed); }}},
      {.name = "batch_size",
       .saved = "batch_size",
       .value = integer([](Options o) { return o.batch_size; }, 1)},
      {.name = "last_batch", .saved = "last_batch", .value = {[](Options o) -> std::string {
                                                      return std::string(name_of(o.last_batch));
                                                    }}},
      {.name = "epochs",
       .saved = "epochs",
       .value = integer([](Options o) { return o.epochs; }, 0)},
      {.name = "steps", .saved = "steps", .value = integer([](Options o) { return o.steps; }, 0)},
      {.name = "recompute",
       .value = {[](Options o) -> std::string { return to_string(o.recompute); }}},
      {.name = "threads_per_rank",
       .value = integer([](Options o) { return o.executor_options.threads_per_rank; }, 1, 1024),
       .agreed = false},
      {.name = "keep",
       .value = integer([](Options o) { return o.save.keep; }, 1, 1'000'000),
       .agreed = false},
      {.name = "keep_every",
       .value = integer([](Options o) { return o.save.keep_every; }, 0, kAnyCount),
       .agreed = false},
      {.name = "records", .value = yes_or_no(&TrainerOptions::records)},
      {.name = "inspect_gradients",
       .title = "inspected steps",
       .value = integer([](Options o) { return o.inspect_gradients; }, 0)},
  };
  return rows;
}

}  // namespace

TrainerOptions with_loss_scale(TrainerOptions options, DType precision) {
  if (!options.loss_scale) options.loss_scale = loss_scale_for(precision);
  return options;
}

void check_settings(const TrainerOptions& options) {
  for (const Setting& row : settings()) {
    const std::string fault = row.value.fault ? row.value.fault(options) : "";
    if (!fault.empty())
      throw InvalidParameter(named(row.name) + " " + row.value.text(options) + ": " + fault);
  }
}

std::vector<std::pair<std::string, std::string>> agreed_settings(const TrainerOptions& options) {
  std::vector<std::pair<std::string, std::string>> agreed;
  for (const Setting& row : settings()) {
    if (!row.agreed) continue;
    std::string value = row.value.text(options);
    agreed.emplace_back(row.title_text(), value.empty() ? "none" : std::move(value));
  }
  return agreed;
}

std::map<std::string, std::string> saved_settings(const TrainerOptions& options) {
  std::map<std::string, std::string> saved;
  for (const Setting& row : settings())
    if (!row.saved.empty()) saved.emplace(row.saved, row.value.text(options));
  return saved;
}

}  // namespace millrace
