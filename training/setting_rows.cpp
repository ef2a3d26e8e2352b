// The rows of the table of settings.
#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <limits>

#include "millrace/core/error.hpp"
#include "millrace/training/settings.hpp"
#include "training/setting_values.hpp"

namespace millrace {
namespace {

using enum OptimizerKind;
using namespace values;

std::string same(std::string_view text) {
  return std::string(text);
}

std::string tied_text(const std::vector<std::string>& names) {
  return fmt::format("{}", fmt::join(names, " = "));
}

std::vector<std::string> tied_names(std::string_view group) {
  return parts_of(group, " = ");
}

double loss_weight_in(std::string_view text) {
  const auto weight = number_in<double>(text);
  require(weight && Range().has(*weight), "must be numbers, " + Range().text());
  return *weight;
}

std::string optimizer_text(Options options) {
  return std::string(options.step.custom_optimizer ? "custom"
                                                   : name_of(options.step.optimizer.kind));
}

/// With the curve's own parameters; height and length are settings of their own.
void set_curve(TrainerOptions& options, std::string_view text) {
  LearningRate rate = parse_learning_rate(text);
  rate.base = options.step.learning_rate.base;
  rate.warm_up = options.step.learning_rate.warm_up;
  rate.total_updates = options.step.learning_rate.total_updates;
  options.step.learning_rate = rate;
}

/// A short form of parameter groups.
void freeze(TrainerOptions& options, std::string_view text) {
  for (const std::string& pattern : parts_of(text, " "))
    options.step.parameters.push_back({.pattern = pattern, .frozen = true});
}

std::string executor_in(std::string_view text) {
  std::vector<std::string_view> names;
  for (const ExecutorKind kind : executor_kinds()) names.push_back(name_of(kind));
  require(std::ranges::find(names, text) != names.end(),
          fmt::format("must be one of {}", fmt::join(names, ", ")));
  return std::string(text);
}

/// true and false are values of a configuration file and of Python.
Recompute recompute_in(std::string_view text) {
  if (text == "true") return {.kind = RecomputeKind::All};
  return text == "false" ? Recompute() : parse_recompute(text);
}

std::string interval_text(Options options) {
  if (const auto time = options.save.every_time)
    return fmt::format("{}s", std::chrono::duration_cast<std::chrono::seconds>(*time).count());
  return fmt::format("{}", options.save.every_steps.value_or(0));
}

void set_interval(TrainerOptions& options, std::string_view text) {
  const bool is_time = text.ends_with('s');
  const auto number = number_in<std::int64_t>(text.substr(0, text.size() - (is_time ? 1 : 0)));
  require(number && *number >= (is_time ? 1 : 0) && *number <= kMost,
          "must be mini-batches, as 50, or seconds, as 30s, up to 1000000000");
  options.save.every_time.reset();
  options.save.every_steps.reset();
  if (is_time)
    options.save.every_time = std::chrono::seconds(*number);
  else if (*number > 0)
    options.save.every_steps = *number;
}

std::string validate_every_text(Options options) {
  const ValidationOptions& given = options.validation;
  return given.every_steps ? fmt::format("{}", *given.every_steps)
                           : fmt::format("{}ep", given.every_epochs);
}

void set_validate_every(TrainerOptions& options, std::string_view text) {
  const bool is_epochs = text.ends_with("ep");
  const auto number = number_in<std::int64_t>(text.substr(0, text.size() - (is_epochs ? 2 : 0)));
  require(number && *number >= 1 && *number <= kMost,
          "must be mini-batches, as 500, or epochs, as 2ep, from 1 to 1000000000");
  options.validation.every_steps = is_epochs ? std::nullopt : number;
  options.validation.every_epochs = is_epochs ? *number : 1;
}

std::optional<ValidationMetric> keep_best_in(std::string_view text) {
  if (text == "none") return {};
  for (const ValidationMetric metric : {ValidationMetric::Loss, ValidationMetric::Accuracy})
    if (text == name_of(metric)) return metric;
  throw InvalidArgument("must be loss, accuracy or none");
}

SaveErrors save_errors(std::string_view text) {
  require(text == "stop" || text == "continue", "must be stop or continue");
  return text == "stop" ? SaveErrors::Throw : SaveErrors::Continue;
}

}  // namespace

// NOLINTNEXTLINE(cppcoreguidelines-macro-usage): a function of a member is longer than a row
#define MILLRACE_MEMBER(path)  \
  [](auto& options) -> auto& { \
    return options.path;       \
  }

std::span<const Setting> settings() {  // NOLINT(readability-function-size): a table
  constexpr std::uint8_t kNoKeyword = kInFlags | kAgreed | kReported;
  constexpr std::uint8_t kNoFlag = kInKeywords | kAgreed;
  constexpr std::uint8_t kOfOneProcess = kInFlags | kInKeywords;
  constexpr std::uint8_t kOfAll = kOfOneProcess | kAgreed;
  static const std::vector<Setting> rows = {
      {.name = "accumulate",
       .title = "accumulated passes",
       .help = "Accumulation steps per update, each over all micro-batches of a pass",
       .value = integer(MILLRACE_MEMBER(step.accumulate), 1, 1'000'000),
       .presets = {{"1"}}},
      {.name = "accumulate_order",
       .title = "order of accumulation",
       .help = "Order in which gradients of micro-batches are added: ascending (without "
               "data-parallel replicas) or tree (with them; same bits for every schedule)",
       .value = parsed(MILLRACE_MEMBER(step.accumulate_order),
                       accumulate_order,
                       [](AccumulateOrder order) { return name_of(order); })},
      {.name = "optimizer",
       .help = "sgd, momentum, nesterov, adam, adamw, lamb or lion",
       .value = {.get = optimizer_text,
                 .set =
                     [](TrainerOptions& options, std::string_view text) {
                       options.step.optimizer = optimizer_defaults(optimizer_kind(text));
                     }},
       .presets = {{"adamw"}}},
      {.name = "momentum",
       .saved = "optimizer.momentum",
       .help = "Momentum of momentum and nesterov",
       .value = real(MILLRACE_MEMBER(step.optimizer.momentum), kFraction),
       .presets = {{"0.9"}},
       .of = {Momentum, Nesterov},
       .places = kNoKeyword},
      {.name = "beta1",
       .saved = "optimizer.beta1",
       .help = "Decay of the first moment: adam, adamw, lamb and lion",
       .value = real(MILLRACE_MEMBER(step.optimizer.beta1), kFraction),
       .presets = {{"0.9"}},
       .of = {Adam, AdamW, Lamb, Lion},
       .places = kNoKeyword},
      {.name = "beta2",
       .saved = "optimizer.beta2",
       .help = "Decay of the second moment: adam, adamw, lamb and lion",
       .value = real(MILLRACE_MEMBER(step.optimizer.beta2), kFraction),
       .presets = {{"0.99", {Lion}}, {"0.999"}},
       .of = {Adam, AdamW, Lamb, Lion},
       .places = kNoKeyword},
      {.name = "epsilon",
       .saved = "optimizer.epsilon",
       .help = "Added to the root of the second moment: adam, adamw and lamb",
       .value = real(MILLRACE_MEMBER(step.optimizer.epsilon), kAboveZero),
       .presets = {{"1e-6", {Lamb}}, {"1e-8"}},
       .of = {Adam, AdamW, Lamb},
       .places = kNoKeyword},
      {.name = "weight_decay",
       .saved = "optimizer.weight_decay",
       .help = "Weight decay",
       .value = real(MILLRACE_MEMBER(step.optimizer.weight_decay)),
       .presets = {{"0.1", {AdamW}}, {"0"}},
       .places = kNoKeyword},
      {.name = "shard_optimizer",
       .help = "Shard the optimizer state across data-parallel replicas (ZeRO stage 1)",
       .value = yes_or_no(MILLRACE_MEMBER(step.shard_optimizer)),
       .bare = "true"},
      {.name = "lr",
       .title = "learning rate",
       .saved = "learning_rate.base",
       .help = "Largest learning rate",
       .value = real(MILLRACE_MEMBER(step.learning_rate.base)),
       .presets = {{"3e-3", {Adam, AdamW}}, {"3e-4", {Lion}}, {"1e-2"}},
       .places = kNoKeyword},
      {.name = "learning_rate",
       .flag = "lr-schedule",
       .title = "learning-rate schedule",
       .saved = "learning_rate.curve",
       .help = "Learning-rate schedule: constant, linear, cosine, step[:every=N,factor=X], "
               "inverse-sqrt or wsd[:decay=N]; all but constant also floor=X, a share of the "
               "largest rate",
       .value = {.get = [](Options options) { return to_string(options.step.learning_rate); },
                 .set = set_curve},
       .presets = {{"cosine"}}},
      {.name = "warm_up",
       .flag = "warmup",
       .title = "warm-up",
       .saved = "learning_rate.warm_up",
       .help = "Updates of the linear warm-up (the command: a twentieth of all)",
       .value = integer(MILLRACE_MEMBER(step.learning_rate.warm_up), 0)},
      {.name = "total_updates",
       .title = "updates in all",
       .saved = "learning_rate.total_updates",
       .help = "Updates until the learning-rate schedule ends; 0: at the end of each fit()",
       .value = integer(MILLRACE_MEMBER(step.learning_rate.total_updates), 0, kAnyCount),
       .places = kNoFlag},
      {.name = "clip_norm",
       .saved = "clip_norm",
       .help = "Largest gradient norm over all stages, or none",
       .value = real(MILLRACE_MEMBER(step.clip_norm), kAboveZero),
       .presets = {{"1", {AdamW}}, {"none"}}},
      {.name = "loss_scale",
       .saved = "loss_scale",
       .help = "none, static:X or dynamic[:initial=,growth=,backoff=,interval=,floor=,ceiling=]; "
               "unset: dynamic for f16, else none",
       .value = {
           .get =
               [](Options options) {
                 return options.step.loss_scale ? to_string(*options.step.loss_scale)
                                                : "by the precision";
               },
           .set = [](TrainerOptions& options,
                     std::string_view text) { options.step.loss_scale = parse_loss_scale(text); }}},
      {.name = "max_skipped",
       .title = "skipped steps in a row",
       .saved = "max_skipped",
       .help = "End after N skipped steps in a row, their gradients not finite",
       .value = integer(MILLRACE_MEMBER(step.max_skipped), 1),
       .presets = {{"25"}}},
      {.name = "parameters",
       .title = "parameter groups",
       .saved = "parameters",
       .help = "NAMES:[lr=X][,weight-decay=X][,frozen]: settings of these parameters, * for any "
               "letters, X times the learning rate; repeat as needed, the last match decides",
       .value = list(MILLRACE_MEMBER(step.parameters),
                     parse_parameter_group,
                     [](const ParameterGroup& group) { return to_string(group); })},
      {.name = "frozen",
       .saved = "frozen",
       .help = "Names of parameters that are not updated, * for any letters",
       .value = {.kind = SettingKind::List,
                 .get = [](Options) { return std::string(); },  // in `parameters`
                 .set = freeze},
       .places = kInKeywords},
      {.name = "tied",
       .title = "tied weights",
       .help = "Groups of names that are one weight",
       .value = list(MILLRACE_MEMBER(step.tied), tied_names, tied_text, "; "),
       .places = kNoFlag},
      {.name = "loss_weights",
       .help = "A factor for each stage with a loss, in their order; unset: 1",
       .value = list(MILLRACE_MEMBER(step.loss_weights), loss_weight_in, exact_text),
       .places = kNoFlag},
      {.name = "seed",
       .help = "Seed of initial weights, split, shuffling and dropout",
       .value = integer(MILLRACE_MEMBER(step.seed), 0, std::numeric_limits<std::uint64_t>::max()),
       .presets = {{"1"}}},
      {.name = "batch_size",
       .saved = "batch_size",
       .help = "Samples of a mini-batch, one update",
       .value = integer(MILLRACE_MEMBER(fit.batch_size), 1),
       .presets = {{"128"}}},
      {.name = "last_batch",
       .saved = "last_batch",
       .help = "update or drop: the last, incomplete mini-batch of an epoch",
       .value = parsed(MILLRACE_MEMBER(fit.last_batch),
                       last_batch,
                       [](LastBatch policy) { return name_of(policy); }),
       .presets = {{"update"}}},
      {.name = "epochs",
       .saved = "epochs",
       .help = "Passes over the data",
       .value = integer(MILLRACE_MEMBER(fit.epochs), 0),
       .presets = {{"60"}}},
      {.name = "steps",
       .saved = "steps",
       .help = "Mini-batches in all, instead of epochs",
       .value = count_or_unset(MILLRACE_MEMBER(fit.steps))},
      {.name = "recompute",
       .help = "Recompute layers instead of saving their activations: none, all, stages:LIST, "
               "every-K, selective:LAYERS or auto:BYTES",
       .value = parsed(MILLRACE_MEMBER(run.recompute),
                       recompute_in,
                       [](const Recompute& recompute) { return to_string(recompute); }),
       .presets = {{"none"}},
       .bare = "all"},
      {.name = "executor",
       .help = "flow-graph, ranks or sequential",
       .value = parsed(MILLRACE_MEMBER(run.executor), executor_in, same),
       .presets = {{"flow-graph"}},
       .places = kOfOneProcess},
      {.name = "threads_per_rank",
       .help = "Threads that share each pass of a rank; same bits for any number",
       .value = integer(MILLRACE_MEMBER(run.executor_options.threads_per_rank), 1, 1024),
       .presets = {{"1"}},
       .places = kOfOneProcess | kReported},
      {.name = "save_folder",
       .flag = "save",
       .help = "Save here at the end, on SIGTERM or SIGINT, at intervals, and after a failed step "
               "if all ranks live",
       .value = parsed(MILLRACE_MEMBER(save.folder), same, same),
       .places = kOfOneProcess},
      {.name = "save_every",
       .help = "Interval of checkpoints: mini-batches, as 50, or seconds, as 30s",
       .value = {.get = interval_text, .set = set_interval},
       .places = kOfOneProcess},
      {.name = "save_errors",
       .help = "stop, or continue and exit with 1 at the end, when a checkpoint cannot be saved",
       .value = parsed(
           MILLRACE_MEMBER(save.errors),
           save_errors,
           [](SaveErrors errors) { return errors == SaveErrors::Throw ? "stop" : "continue"; }),
       .presets = {{"stop"}},
       .places = kOfOneProcess},
      {.name = "keep",
       .help = "Newest checkpoints to keep",
       .value = integer(MILLRACE_MEMBER(save.keep), 1, 1'000'000),
       .presets = {{"2"}},
       .places = kOfOneProcess},
      {.name = "keep_every",
       .help = "Also keep checkpoints whose step is a multiple of this; 0: none",
       .value = count_or_unset(MILLRACE_MEMBER(save.keep_every), kAnyCount),
       .presets = {{"0"}},
       .places = kOfOneProcess},
      {.name = "validate_every",
       .help = "Interval of validations: mini-batches, as 500, or epochs, as 2ep",
       .value = {.get = validate_every_text, .set = set_validate_every},
       .presets = {{"1ep"}},
       .places = kOfAll},
      {.name = "keep_best",
       .help = "Keep the best checkpoint by the loss or accuracy of validations, or none",
       .value = parsed(MILLRACE_MEMBER(validation.keep_best),
                       keep_best_in,
                       [](std::optional<ValidationMetric> metric) {
                         return metric ? name_of(*metric) : "none";
                       }),
       .presets = {{"none"}},
       .places = kOfAll},
      {.name = "early_stopping",
       .help = "End after N validations without improvement by keep_best, else by the loss; 0: off",
       .value = integer(MILLRACE_MEMBER(validation.early_stopping), 0),
       .presets = {{"0"}},
       .places = kOfAll},
      {.name = "min_delta",
       .help = "Least improvement that early stopping counts",
       .value = real(MILLRACE_MEMBER(validation.min_delta)),
       .presets = {{"0"}},
       .places = kOfAll},
      {.name = "records",
       .help = "Whether a record is made of every step",
       .value = yes_or_no(MILLRACE_MEMBER(watch.records)),
       .places = kAgreed},
      {.name = "inspect_gradients",
       .title = "inspected steps",
       .help = "First steps whose gradients are inspected",
       .value = integer(MILLRACE_MEMBER(watch.inspect_gradients), 0),
       .places = kAgreed},
  };
  return rows;
}

}  // namespace millrace
