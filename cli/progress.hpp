// What a person sees while training: one line that moves on a terminal, a line per epoch elsewhere.
#pragma once

#include <cstdint>
#include <iosfwd>

#include "millrace/training/trainer_options.hpp"

namespace millrace::cli {

/// Prints progress. Thread-safety: externally synchronised.
class Progress {
 public:
  /// `moves`: the stream is a terminal, and a line may be written over.
  Progress(std::ostream& stream, bool moves, std::int64_t epochs);

  /// `bubble` is the idle share of the step over all ranks.
  void step(const StepReport& report, double bubble);
  void epoch(const EpochReport& report);

 private:
  std::ostream& stream_;
  bool moves_;
  std::int64_t epochs_;
  StepReport last_;
  double bubble_ = 0;
  std::size_t width_ = 0;  // of the line that will be written over
  double since_drawn_ = 1;
};

}  // namespace millrace::cli
