// The rows of the table of settings.
#include <chrono>

#include "millrace/training/settings.hpp"
#include "training/settings/access.hpp"

namespace millrace {
namespace {

using enum OptimizerKind;
using namespace access;

SettingAccess optimizer_access() {
  return {.get =
              [](const TrainerOptions& options) {
                return options.custom_optimizer ? "custom"
                                                : std::string(name_of(options.optimizer.kind));
              },
          .set =
              [](TrainerOptions& options, std::string_view text) {
                options.optimizer = optimizer_defaults(optimizer_kind(text));
              }};
}

/// The curve; its height and length are settings of their own.
SettingAccess curve_access() {
  return {.get = [](const TrainerOptions& options) { return to_string(options.learning_rate); },
          .set =
              [](TrainerOptions& options, std::string_view text) {
                LearningRate rate = parse_learning_rate(text);
                rate.base = options.learning_rate.base;
                rate.warm_up = options.learning_rate.warm_up;
                rate.total_updates = options.learning_rate.total_updates;
                options.learning_rate = rate;
              }};
}

SettingAccess loss_scale_access() {
  return {.get =
              [](const TrainerOptions& options) {
                return options.loss_scale ? to_string(*options.loss_scale) : "by the precision";
              },
          .set = [](TrainerOptions& options,
                    std::string_view text) { options.loss_scale = parse_loss_scale(text); }};
}

SettingAccess executor_access() {
  return {.get = [](const TrainerOptions& options) { return options.executor; },
          .set =
              [](TrainerOptions& options, std::string_view text) {
                const auto kinds = executor_kinds();
                require(std::ranges::find(kinds, text) != kinds.end(),
                        fmt::format("must be {}", fmt::join(kinds, ", ")));
                options.executor = text;
              }};
}

/// true, from a file or a bare flag, recomputes everything.
Recompute recompute_in(std::string_view text) {
  if (text == "true") return {.kind = RecomputeKind::All};
  return text == "false" ? Recompute() : parse_recompute(text);
}

/// "50" is steps, "30s" is seconds, "0" is neither.
SettingAccess interval_access() {
  return {.get =
              [](const TrainerOptions& options) {
                const auto time =
                    std::chrono::duration_cast<std::chrono::seconds>(options.save.every_time);
                return time.count() > 0 ? fmt::format("{}s", time.count())
                                        : fmt::format("{}", options.save.every_steps);
              },
          .set =
              [](TrainerOptions& options, std::string_view text) {
                const bool is_time = text.ends_with('s');
                const auto number =
                    number_in<std::int64_t>(text.substr(0, text.size() - (is_time ? 1 : 0)));
                require(number && *number >= (is_time ? 1 : 0) && *number <= kMost,
                        "must be mini-batches, as 50, or seconds, as 30s, from 1 to 1000000000");
                options.save.every_time = std::chrono::seconds(is_time ? *number : 0);
                options.save.every_steps = is_time ? 0 : *number;
              }};
}

SettingAccess errors_access() {
  return {.get =
              [](const TrainerOptions& options) {
                return options.save.errors == SaveErrors::Throw ? "stop" : "continue";
              },
          .set =
              [](TrainerOptions& options, std::string_view text) {
                require(text == "stop" || text == "continue", "must be stop or continue");
                options.save.errors = text == "stop" ? SaveErrors::Throw : SaveErrors::Continue;
              }};
}

const std::string& same(const std::string& text) {
  return text;
}

}  // namespace

std::span<const Setting> settings() {
  static const std::vector<Setting> rows = {
      {.name = "accumulate",
       .title = "accumulated passes",
       .help = "Accumulation steps per update, each over all micro-batches of a pass",
       .access = integer(
           [](auto& o) -> auto& { return o.accumulate; }, 1, 1'000'000),
       .presets = {{"1"}}},
      {.name = "accumulate_order",
       .title = "order of accumulation",
       .help = "Order in which gradients of micro-batches are added: ascending (without "
               "data-parallel replicas) or "
               "tree (with them; same bits for every schedule and number of replicas)",
       .access = parsed(
           [](auto& o) -> auto& { return o.accumulate_order; },
           accumulate_order,
           [](AccumulateOrder order) { return name_of(order); })},
      {.name = "optimizer",
       .help = "sgd, momentum, nesterov, adam, adamw, lamb or lion",
       .access = optimizer_access(),
       .presets = {{"adamw"}}},
      {.name = "momentum",
       .saved = "optimizer.momentum",
       .help = "Momentum",
       .access = real(
           [](auto& o) -> auto& { return o.optimizer.momentum; }, kFraction),
       .presets = {{"0.9"}},
       .of = {Momentum, Nesterov},
       .places = kInFlags | kAgreed | kReported},
      {.name = "beta1",
       .saved = "optimizer.beta1",
       .help = "Decay of the first moment",
       .access = real(
           [](auto& o) -> auto& { return o.optimizer.beta1; }, kFraction),
       .presets = {{"0.9"}},
       .of = {Adam, AdamW, Lamb, Lion},
       .places = kInFlags | kAgreed | kReported},
      {.name = "beta2",
       .saved = "optimizer.beta2",
       .help = "Decay of the second moment",
       .access = real(
           [](auto& o) -> auto& { return o.optimizer.beta2; }, kFraction),
       .presets = {{"0.99", {Lion}}, {"0.999"}},
       .of = {Adam, AdamW, Lamb, Lion},
       .places = kInFlags | kAgreed | kReported},
      {.name = "epsilon",
       .saved = "optimizer.epsilon",
       .help = "Added to the root of the second moment",
       .access = real(
           [](auto& o) -> auto& { return o.optimizer.epsilon; }, kAboveZero),
       .presets = {{"1e-6", {Lamb}}, {"1e-8"}},
       .of = {Adam, AdamW, Lamb},
       .places = kInFlags | kAgreed | kReported},
      {.name = "weight_decay",
       .saved = "optimizer.weight_decay",
       .help = "Weight decay",
       .access = real([](auto& o) -> auto& { return o.optimizer.weight_decay; }),
       .presets = {{"0.1", {AdamW}}, {"0"}},
       .places = kInFlags | kAgreed | kReported},
      {.name = "shard_optimizer",
       .help = "Shard the optimizer state across data-parallel replicas (ZeRO stage 1)",
       .access = yes_or_no([](auto& o) -> auto& { return o.shard_optimizer; })},
      {.name = "lr",
       .title = "learning rate",
       .saved = "learning_rate.base",
       .help = "Largest learning rate",
       .access = real([](auto& o) -> auto& { return o.learning_rate.base; }),
       .presets = {{"3e-3", {Adam, AdamW}}, {"3e-4", {Lion}}, {"1e-2"}},
       .places = kInFlags | kAgreed | kReported},
      {.name = "learning_rate",
       .flag = "lr-schedule",
       .title = "learning-rate schedule",
       .saved = "learning_rate.curve",
       .help = "constant, linear, cosine, step[:every=N,factor=X], inverse-sqrt or wsd[:decay=N]; "
               "all but constant also floor=X, a share of the largest rate",
       .access = curve_access(),
       .presets = {{"cosine"}}},
      {.name = "warm_up",
       .flag = "warmup",
       .title = "warm-up",
       .saved = "learning_rate.warm_up",
       .help = "Updates of the linear warm-up (a twentieth of all)",
       .access = integer(
           [](auto& o) -> auto& { return o.learning_rate.warm_up; }, 0)},
      {.name = "total_updates",
       .title = "updates in all",
       .saved = "learning_rate.total_updates",
       .help = "Updates until the learning-rate schedule ends",
       .access = integer(
           [](auto& o) -> auto& { return o.learning_rate.total_updates; },
           0,
           std::numeric_limits<std::int64_t>::max()),
       .places = kInKeywords | kAgreed},
      {.name = "clip_norm",
       .saved = "clip_norm",
       .help = "Largest gradient norm over all stages",
       .access = real(
           [](auto& o) -> auto& { return o.clip_norm; }, kAboveZero),
       .presets = {{"1", {AdamW}}, {"none"}}},
      {.name = "loss_scale",
       .saved = "loss_scale",
       .help = "none, static:X or dynamic[:initial=,growth=,backoff=,interval=,floor=,ceiling=] "
               "(dynamic for f16, else none)",
       .access = loss_scale_access()},
      {.name = "max_skipped",
       .title = "skipped steps in a row",
       .saved = "max_skipped",
       .help = "End after N skipped steps in a row, their gradients not finite",
       .access = integer(
           [](auto& o) -> auto& { return o.max_skipped; }, 1),
       .presets = {{"25"}}},
      {.name = "parameters",
       .title = "parameter groups",
       .saved = "parameters",
       .help = "NAMES:[lr=X][,weight-decay=X][,frozen]: settings of these parameters, * for any "
               "letters, X times the learning rate; repeat as needed, the last match decides",
       .access = list(
           [](auto& o) -> auto& { return o.parameters; },
           parse_parameter_group,
           [](const ParameterGroup& group) { return to_string(group); })},
      {.name = "frozen",
       .title = "frozen parameters",
       .saved = "frozen",
       .help = "Names of parameters that are not updated, * for any letters",
       .access = list(
           [](auto& o) -> auto& { return o.frozen; }, same, same),
       .places = kInKeywords | kAgreed},
      {.name = "tied",
       .title = "tied weights",
       .help = "Groups of names that are one weight",
       .access = list(
           [](auto& o) -> auto& { return o.tied; },
           [](const std::string& group) { return parts_of(group, " = "); },
           [](const std::vector<std::string>& names) {
             return fmt::format("{}", fmt::join(names, " = "));
           },
           "; "),
       .places = kInKeywords | kAgreed},
      {.name = "seed",
       .help = "Of initial weights, split, shuffling, dropout",
       .access = integer(
           [](auto& o) -> auto& { return o.seed; }, 0, std::numeric_limits<std::uint64_t>::max()),
       .presets = {{"1"}}},
      {.name = "batch_size",
       .saved = "batch_size",
       .help = "Samples of a mini-batch, one update",
       .access = integer(
           [](auto& o) -> auto& { return o.batch_size; }, 1),
       .presets = {{"128"}}},
      {.name = "last_batch",
       .saved = "last_batch",
       .help = "update or drop: the last, incomplete mini-batch of an epoch",
       .access = parsed(
           [](auto& o) -> auto& { return o.last_batch; },
           last_batch,
           [](LastBatch policy) { return name_of(policy); }),
       .presets = {{"update"}}},
      {.name = "epochs",
       .saved = "epochs",
       .help = "Passes over the data",
       .access = integer(
           [](auto& o) -> auto& { return o.epochs; }, 0),
       .presets = {{"60"}}},
      {.name = "steps",
       .saved = "steps",
       .help = "Mini-batches in all, instead of epochs",
       .access = integer(
           [](auto& o) -> auto& { return o.steps; }, 0)},
      {.name = "recompute",
       .help = "Recompute layers instead of saving their activations: =all, =stages:LIST, "
               "=every-K, =selective:LAYERS, =auto:BYTES",
       .access = parsed(
           [](auto& o) -> auto& { return o.recompute; },
           recompute_in,
           [](const Recompute& recompute) { return to_string(recompute); })},
      {.name = "executor",
       .help = "flow-graph, ranks or sequential",
       .access = executor_access(),
       .presets = {{"flow-graph"}},
       .places = kInFlags | kInKeywords},
      {.name = "threads_per_rank",
       .help = "Threads that share each pass of a rank; same bits for any number",
       .access = integer(
           [](auto& o) -> auto& { return o.executor_options.threads_per_rank; }, 1, 1024),
       .presets = {{"1"}},
       .places = kInFlags | kInKeywords | kReported},
      {.name = "save_folder",
       .flag = "save",
       .help = "Save here at the end, on SIGTERM or SIGINT, at intervals, and after a failed "
               "step if all ranks live",
       .access = parsed(
           [](auto& o) -> auto& { return o.save.folder; },
           [](std::string_view text) { return std::string(text); },
           same),
       .places = kInFlags | kInKeywords},
      {.name = "save_every",
       .help = "Mini-batches, as 50, or seconds, as 30s",
       .access = interval_access(),
       .places = kInFlags | kInKeywords},
      {.name = "save_errors",
       .help = "stop, or continue and exit with 1 at the end, when a checkpoint cannot be saved",
       .access = errors_access(),
       .presets = {{"stop"}},
       .places = kInFlags | kInKeywords},
      {.name = "keep",
       .help = "Newest checkpoints to keep",
       .access = integer(
           [](auto& o) -> auto& { return o.save.keep; }, 1, 1'000'000),
       .presets = {{"2"}},
       .places = kInFlags | kInKeywords},
      {.name = "keep_every",
       .help = "Also keep checkpoints whose step is a multiple of this; 0: none",
       .access = integer(
           [](auto& o) -> auto& { return o.save.keep_every; },
           0,
           std::numeric_limits<std::int64_t>::max()),
       .presets = {{"0"}},
       .places = kInFlags | kInKeywords},
      {.name = "records",
       .help = "Whether a record is made of every step",
       .access = yes_or_no([](auto& o) -> auto& { return o.records; }),
       .places = kAgreed},
      {.name = "inspect_gradients",
       .title = "inspected steps",
       .help = "First steps whose gradients are inspected",
       .access = integer(
           [](auto& o) -> auto& { return o.inspect_gradients; }, 0),
       .places = kAgreed},
  };
  return rows;
}

}  // namespace millrace
