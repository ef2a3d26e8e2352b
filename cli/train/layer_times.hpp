// Measured seconds of every layer of a model, for the partition by time.
#pragma once

#include <cstdint>
#include <vector>

#include "millrace/stages/models.hpp"
#include "millrace/training/dataset.hpp"

namespace millrace::cli {

/// Forward and backward seconds of each layer for one micro-batch of so many samples, from a few
/// steps in one thread.
std::vector<double> layer_seconds(const ModelSpec& model,
                                  const Dataset& data,
                                  std::int64_t micro_batch_size);

}  // namespace millrace::cli
