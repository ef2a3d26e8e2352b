// Taking a training's state from a checkpoint: find it, verify it, compare it, and only then write.
#pragma once

#include <string>

#include "millrace/training/checkpoint.hpp"
#include "millrace/training/reports.hpp"
#include "millrace/transport/process_group.hpp"

namespace millrace {

/// A report, and what the checkpoint says of data that has not been seen yet.
struct Resumed {
  ResumeReport report;
  std::string data;  ///< Manifest::data
};

/// One pass of the training that goes on.
struct Pass {
  int micro_batches = 1;
  int copies = 1;  ///< of the model
};

/// `own` is what the training would save now, without shards. A collective; throws as
/// Trainer::resume.
[[nodiscard]] Resumed resume(TrainingState& state,
                             ProcessGroup& group,
                             const Manifest& own,
                             const Pass& pass,
                             const std::string& path,
                             FileSystem& files);

}  // namespace millrace
