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

  /// Writes what was asked for. Throws InvalidArgument when writing fails.
  void write(const Program& program, const Timeline& last, const Cost& cost) const;

 private:
  class File {
   public:
    File(std::string option, const std::string& path);
    [[nodiscard]] bool wanted() const { return !path_.empty(); }
    void write(const std::string& text) const;

   private:
    std::string option_, path_;
  };

  File trace_, svg_, costs_;
};

}  // namespace millrace::cli
