// The flags of train that say how weights move: optimizer, learning rate, clipping,
// and which move in another way.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "millrace/stages/models.hpp"
#include "millrace/training/trainer_options.hpp"

namespace millrace::cli {

struct RuleFlags {
  std::string optimizer = "adamw";
  std::string lr_schedule = "cosine";
  std::string loss_scale;
  std::vector<std::string> parameters;
  std::int64_t max_skipped = 25;
  std::optional<std::int64_t> warm_up;
  std::optional<double> lr, weight_decay, clip_norm, momentum, beta1, beta2, epsilon;
};

/// `flags` must outlive the verb.
void add_rule_flags(CLI::App& verb, RuleFlags& flags);

/// Throws InvalidArgument for a number out of its range, naming the option.
void check_rule(const RuleFlags& flags);

/// Optimizer, learning rate, clipping, groups of the model's parameters. Throws InvalidArgument.
void set_rule(const RuleFlags& flags, const ModelSpec& model, TrainerOptions& options);

/// What follows from the number of updates, which the data decide.
void set_length(const RuleFlags& flags, std::int64_t updates, TrainerOptions& options);

/// All that the flags decide, named, as ranks compare it and programs read it.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> rule_fields(
    const RuleFlags& flags, const TrainerOptions& options);

}  // namespace millrace::cli
