#include "cli/train/rule.hpp"

#include <initializer_list>

#include "cli/numbers.hpp"
#include "cli/train/refusals.hpp"
#include "millrace/core/error.hpp"

namespace millrace::cli {

namespace {

std::string names_of_optimizers() {
  std::string names;
  for (const OptimizerKind kind : optimizer_kinds())
    names += (names.empty() ? "" : ", ") + std::string(name_of(kind));
  return names;
}

/// Learning rates that learn the default job well.
double usual_rate(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::Adam:
    case OptimizerKind::AdamW:
      return 3e-3;
    case OptimizerKind::Lion:
      return 3e-4;
    default:
      return 1e-2;
  }
}

std::string groups_in(const TrainerOptions& options) {
  std::string text;
  for (const ParameterGroup& group : options.parameters)
    text += (text.empty() ? "" : " ") + to_string(group);
  return text.empty() ? "none" : text;
}

double usual_decay(OptimizerKind kind) {
  return kind == OptimizerKind::AdamW ? 0.1 : 0.0;
}

/// A setting that the optimizer does not have would be ignored: it is refused.
void set_if_had(const std::string& option,
                std::optional<double> given,
                std::initializer_list<OptimizerKind> having,
                OptimizerKind kind,
                double& setting) {
  if (!given) return;
  std::string names;
  bool had = false;
  for (const OptimizerKind other : having) {
    names += (names.empty() ? "" : ", ") + std::string(name_of(other));
    had = had || other == kind;
  }
  require(had,
          option + " " + exact(*given) + ": " + std::string(name_of(kind)) +
              " has no such setting; those that have it are " + names);
  setting = *given;
}

OptimizerOptions optimizer_of(const RuleFlags& flags) {
  using enum OptimizerKind;
  const OptimizerKind kind =
      about("--optimizer", flags.optimizer, [&] { return optimizer_kind(flags.optimizer); });
  OptimizerOptions rule = optimizer_defaults(kind);
  set_if_had("--momentum", flags.momentum, {Momentum, Nesterov}, kind, rule.momentum);
  set_if_had("--beta1", flags.beta1, {Adam, AdamW, Lamb, Lion}, kind, rule.beta1);
  set_if_had("--beta2", flags.beta2, {Adam, AdamW, Lamb, Lion}, kind, rule.beta2);
  set_if_had("--epsilon", flags.epsilon, {Adam, AdamW, Lamb}, kind, rule.epsilon);
  rule.weight_decay = flags.weight_decay.value_or(usual_decay(kind));
  return rule;
}

}  // namespace

void add_rule_flags(CLI::App& verb, RuleFlags& flags) {
  verb.add_option("--optimizer", flags.optimizer, names_of_optimizers())->capture_default_str();
  verb.add_option("--lr",
                  flags.lr,
                  "Largest learning rate (3e-3 for adam and adamw, 3e-4 for lion, else 1e-2)");
  verb.add_option("--warmup", flags.warm_up, "Updates of the linear warm-up (a twentieth of all)");
  verb.add_option("--lr-schedule",
                  flags.lr_schedule,
                  "constant, linear, cosine, step[:every=N,factor=X], inverse-sqrt or "
                  "wsd[:decay=N]; but for "
                  "constant also floor=X, a share of --lr")
      ->capture_default_str();
  verb.add_option("--weight-decay", flags.weight_decay, "Weight decay (0.1 for adamw, else 0)");
  verb.add_option("--momentum", flags.momentum, "Of momentum and nesterov (0.9)");
  verb.add_option("--beta1", flags.beta1, "Of adam, adamw, lamb and lion (0.9)");
  verb.add_option("--beta2", flags.beta2, "Of the same (0.99 for lion, else 0.999)");
  verb.add_option("--epsilon", flags.epsilon, "Of adam, adamw and lamb (1e-6 for lamb, else 1e-8)");
  verb.add_option(
          "--parameters",
          flags.parameters,
          "NAMES:[lr=X][,weight-decay=X][,frozen]: settings of the parameters so called, * "
          "for any letters, X times --lr; as often as needed, the last that matches decides")
      ->allow_extra_args(false);
  verb.add_option("--clip-norm",
                  flags.clip_norm,
                  "Largest gradient norm over all stages (1 for adamw, else none)");
  verb.add_option("--loss-scale",
                  flags.loss_scale,
                  "none, static:X or dynamic[:initial=,growth=,backoff=,interval=,floor=,ceiling=]"
                  " (dynamic for f16, else none)");
  verb.add_option("--max-skipped",
                  flags.max_skipped,
                  "End when so many steps in a row were skipped, their gradient not finite")
      ->capture_default_str();
}

void check_rule(const RuleFlags& flags) {
  require_count("--max-skipped", flags.max_skipped);
  if (flags.warm_up)
    require(*flags.warm_up >= 0,
            "--warmup " + std::to_string(*flags.warm_up) + ": must be at least 0 updates");
  if (flags.lr) require_between("--lr", *flags.lr, 0, kUnbounded);
  if (flags.weight_decay) require_between("--weight-decay", *flags.weight_decay, 0, kUnbounded);
  if (flags.momentum) require_between("--momentum", *flags.momentum, 0, 1);
  if (flags.beta1) require_between("--beta1", *flags.beta1, 0, 1);
  if (flags.beta2) require_between("--beta2", *flags.beta2, 0, 1);
  if (flags.epsilon) require_above_zero("--epsilon", *flags.epsilon);
  if (flags.clip_norm) require_above_zero("--clip-norm", *flags.clip_norm);
}

void set_rule(const RuleFlags& flags, const ModelSpec& model, TrainerOptions& options) {
  options.optimizer = optimizer_of(flags);
  const OptimizerKind kind = options.optimizer.kind;
  options.learning_rate = about(
      "--lr-schedule", flags.lr_schedule, [&] { return parse_learning_rate(flags.lr_schedule); });
  options.learning_rate.base = flags.lr.value_or(usual_rate(kind));
  options.clip_norm = flags.clip_norm;
  if (kind == OptimizerKind::AdamW && !flags.clip_norm) options.clip_norm = 1.0;
  options.max_skipped = flags.max_skipped;
  const std::vector<std::string> names =
      flags.parameters.empty() ? std::vector<std::string>() : parameter_names(model);
  for (const std::string& text : flags.parameters)
    options.parameters.push_back(about("--parameters", text, [&] {
      ParameterGroup group = parse_parameter_group(text);
      check_names(group, names);
      return group;
    }));
  if (!flags.loss_scale.empty())
    options.loss_scale =
        about("--loss-scale", flags.loss_scale, [&] { return parse_loss_scale(flags.loss_scale); });
}

void set_length(const RuleFlags& flags, std::int64_t updates, TrainerOptions& options) {
  options.learning_rate.total_updates = updates;
  options.learning_rate.warm_up = flags.warm_up.value_or(updates / 20);
}

std::vector<std::pair<std::string, std::string>> rule_fields(const RuleFlags& flags,
                                                             const TrainerOptions& options) {
  const OptimizerOptions& rule = options.optimizer;
  return {{"optimizer", std::string(name_of(rule.kind))},
          {"momentum", exact(rule.momentum)},
          {"beta1", exact(rule.beta1)},
          {"beta2", exact(rule.beta2)},
          {"epsilon", exact(rule.epsilon)},
          {"learning rate", exact(options.learning_rate.base)},
          {"learning-rate schedule", to_string(options.learning_rate)},
          {"warm-up", flags.warm_up ? std::to_string(*flags.warm_up) : "a twentieth"},
          {"weight decay", exact(rule.weight_decay)},
          {"parameter groups", groups_in(options)},
          {"clip norm", options.clip_norm ? exact(*options.clip_norm) : "none"},
          {"loss scale", options.loss_scale ? to_string(*options.loss_scale) : "by the precision"},
          {"max skipped", std::to_string(options.max_skipped)}};
}

}  // namespace millrace::cli
