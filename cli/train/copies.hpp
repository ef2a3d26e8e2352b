// Copies of a pipeline side by side in one process.
#pragma once

#include "cli/train/options.hpp"

namespace millrace::cli {

/// As run_training, every place of the job's grid on a thread of its own. Throws what the place
/// threw that failed first.
void run_copies(const TrainJob& job);

}  // namespace millrace::cli
