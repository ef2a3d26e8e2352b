// What a person sees while training: one line that moves on a terminal, a line per epoch elsewhere.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

#include "millrace/training/reports.hpp"

namespace millrace::cli {

/// Of so many positions that held so many tokens.
[[nodiscard]] double padding_share(std::int64_t tokens, std::int64_t positions);

/// Prints progress. Thread-safety: externally synchronised.
class Progress {
 public:
  /// `moves`: the stream is a terminal, and a line may be written over. `idle` names the share that
  /// `step` is given. `padded`: samples have lengths of their own, so that tokens say more of the
  /// pace than samples, and how many positions have none is told.
  Progress(std::ostream& stream,
           bool moves,
           std::int64_t epochs,
           std::string idle = "bubble",
           bool padded = false);

  /// `bubble` is the idle share of the step: over all ranks, or of the one that is named.
  void step(const StepReport& report, double bubble);
  void epoch(const EpochReport& report);

 private:
  [[nodiscard]] std::string line(const StepReport& report,
                                 double mean_loss,
                                 const std::string& pace) const;

  std::ostream& stream_;
  bool moves_;
  std::int64_t epochs_;
  std::string idle_;
  bool padded_;
  StepReport last_;
  double bubble_ = 0;
  std::size_t width_ = 0;  // of the line that will be written over
  double since_drawn_ = 1;
};

}  // namespace millrace::cli
