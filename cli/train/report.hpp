// What `millrace train` says at the end: text for people, one JSON object for programs.
#pragma once

#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "cli/train/checkpoints.hpp"
#include "cli/train/options.hpp"
#include "millrace/training/measurement.hpp"

namespace millrace::cli {

/// Of a model of text.
struct TextOutcome {
  bool padded = false;   ///< samples had lengths of their own
  double gzip_bits = 0;  ///< that `gzip -9` needs for a byte of the text that was judged
  std::string sample;    ///< what the model makes of nothing; empty where it was not asked
};

/// What a run's products are beside the machine's; see product_rate.hpp.
struct ProductUse {
  double operations_per_sample = 0;  ///< 0: the model has no products
  double machine = 0;                ///< operations per second of the cores that the run can use
  int cores = 0;
};

/// The figures of a finished run.
struct TrainOutcome {
  FitReport fit;
  Score score;
  std::string weights_hash;
  StepUse measured;   ///< mean over the steps of full mini-batches
  StepUse simulated;  ///< the program with the measured costs, a processor per rank
  int cores = 0;      ///< that the ranks share; 0: one each, or ranks on several machines
  std::optional<StepUse> on_cores = {};  ///< the same with those, where the passes' times allow it
  std::vector<std::size_t> peak_counted, peak_predicted;  ///< stash bytes per rank
  /// Of moments and master values, per rank; the largest of its copies.
  std::vector<std::size_t> optimizer_counted, optimizer_predicted;
  std::vector<std::size_t> sums_counted, sums_predicted;  ///< bytes of partial sums per rank
  /// Of memory shared with other processes, per rank, the largest of its copies: for activations
  /// and gradients, and for sums and agreements. Zeros, or empty, where none is shared.
  std::vector<std::size_t> shared_counted, shared_predicted, shared_by_collectives;
  std::int64_t updates = 0;
  SavedCheckpoints checkpoints;
  int processes = 0;  ///< that share the places; 0: all of them are in one
  int places = 1;     ///< of each of the processes
  ProductUse products;
  std::optional<TextOutcome> text = {};
};

void print_outcome(std::ostream& stream, const TrainOutcome& outcome);

/// What is left to say of a run that was resumed behind its last step.
void print_finished(std::ostream& stream, const TrainOutcome& outcome, std::int64_t step);
std::string finished_json(const TrainJob& job, const TrainOutcome& outcome, std::int64_t step);

/// Which files the run has written.
void print_files(std::ostream& stream, const TrainFlags& flags);

std::string outcome_json(const TrainJob& job, const TrainOutcome& outcome);

}  // namespace millrace::cli
