// Measured seconds of every layer of a model, for the partition by time.
#pragma once

#include <vector>

#include "cli/train/options.hpp"

namespace millrace::cli {

/// Forward and backward seconds of each layer for one micro-batch of the job, from a few steps in
/// one thread.
std::vector<double> layer_seconds(const ModelSpec& model,
                                  const Dataset& data,
                                  const TrainFlags& flags);

}  // namespace millrace::cli
