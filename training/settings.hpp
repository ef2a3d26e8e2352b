// The settings of a training: what ranks compare before they train, what a manifest keeps, and the
// range of each number.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "millrace/training/trainer_options.hpp"

namespace millrace {

/// The options with the loss scale that they have at this precision of activations.
[[nodiscard]] TrainerOptions with_loss_scale(TrainerOptions options, DType precision);

/// Throws InvalidParameter for a number out of its range.
void check_settings(const TrainerOptions& options);

/// Title and value of the settings that ranks compare; "none" where one is unset.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> agreed_settings(
    const TrainerOptions& options);

/// The settings of a manifest, by their keys.
[[nodiscard]] std::map<std::string, std::string> saved_settings(const TrainerOptions& options);

}  // namespace millrace
