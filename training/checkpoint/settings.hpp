// The settings that decide bits, as texts by name: what a manifest says of a trainer's options.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "millrace/scheduler/plan/program.hpp"
#include "millrace/training/trainer_options.hpp"

namespace millrace {

/// What the optimizer is called: its kind, or "custom".
[[nodiscard]] std::string optimizer_name(const TrainerOptions& options);

/// All that decides bits beside model, data, seed, precision and kind of optimizer. `copies` of the
/// pipeline share the mini-batches out.
[[nodiscard]] std::map<std::string, std::string> settings_of(const Program& program,
                                                             const TrainerOptions& options,
                                                             const LossScaleOptions& loss_scale,
                                                             int copies);

}  // namespace millrace
