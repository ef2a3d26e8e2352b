// What a person sees while training: one line that moves on a terminal, elsewhere a line for the
// first epoch, the last one, and those between, at most one a minute.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>

#include "millrace/training/reports.hpp"

namespace millrace::cli {

/// Of so many positions that held so many tokens.
[[nodiscard]] double padding_share(std::int64_t tokens, std::int64_t positions);

/// "45 s", "3 min 20 s", "2 h 05 min"; 0 s for what is over.
[[nodiscard]] std::string duration_text(double seconds);

struct ProgressOptions {
  bool moves = false;                  ///< the stream is a terminal: a line may be written over
  std::size_t columns = 0;             ///< of the terminal; 0: not known, or a file: 100
  std::int64_t epochs = 0;             ///< of the run
  std::int64_t batches_per_epoch = 0;  ///< mini-batches
  std::int64_t steps = 0;              ///< mini-batches of the run
  std::string idle = "bubble";         ///< name of the share that `step` is given
  /// Samples differ in length: the line has tokens per second and the share of padding.
  bool padded = false;
  /// Seconds on any clock.
  std::function<double()> now = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
};

/// Prints progress. Thread-safety: externally synchronised.
class Progress {
 public:
  /// The run begins now.
  Progress(std::ostream& stream, ProgressOptions options);

  /// `bubble` is the idle share of the step: over all ranks, or of the one that is named.
  void step(const StepReport& report, double bubble);
  /// For the coming line. `is_text`: in bits per character.
  void validation(const ValidationReport& report, bool is_text);
  void epoch(const EpochReport& report);

 private:
  [[nodiscard]] std::string line(double mean_loss,
                                 const std::string& pace,
                                 const std::string& left) const;
  [[nodiscard]] std::string left() const;
  void draw(std::string text);
  [[nodiscard]] std::size_t columns() const;

  std::ostream& stream_;
  ProgressOptions options_;
  StepReport last_;
  std::string validation_;
  bool ends_early_ = false;
  double bubble_ = 0;
  std::int64_t steps_ = 0;  // since the beginning
  std::size_t width_ = 0;   // of the line that will be written over
  double began_, drawn_;
};

}  // namespace millrace::cli
