// The files a training run may write: timeline, picture, measured costs.
#pragma once

#include <string>

#include "cli/train/options.hpp"
#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/scheduler/plan/simulate.hpp"

namespace millrace::cli {

/// Tried before training, so that a wrong path is not found out after it; written whole at its end,
/// so that a run that fails leaves what was there.
/// Thread-safety: externally synchronised.
class TrainOutputs {
 public:
  /// Throws InvalidArgument naming the option whose file cannot be written.
  explicit TrainOutputs(const TrainFlags& flags);

  /// Writes what was asked for; the rest of the run has been told then. Throws Error naming every
  /// file that could not be written.
  void write(const Program& program, const Timeline& last, const Cost& cost) const;

 private:
  std::string trace_, svg_, costs_;
};

}  // namespace millrace::cli
