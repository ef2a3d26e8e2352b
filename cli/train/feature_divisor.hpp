// What the features of a CSV file are divided by. A model knows features so divided only, so the
// number stays with its weights, in checkpoints and in exported files.
#pragma once

#include <string>

#include "cli/train/checkpoint_flags.hpp"

namespace millrace::cli {

/// Its name among the facts of a checkpoint and the metadata of exported weights.
inline constexpr const char* kFeatureDivisor = "feature_divisor";

/// That of the checkpoint or the weights that a run begins with; 0: they name none.
[[nodiscard]] float divisor_of(const CheckpointFlags& flags);

}  // namespace millrace::cli
