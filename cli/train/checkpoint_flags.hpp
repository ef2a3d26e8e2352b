// The flags of `train` about checkpoints: where and when to save, what to go on from.
#pragma once

#include <cstdint>
#include <string>

#include <CLI/CLI.hpp>

#include "millrace/training/trainer_options.hpp"

namespace millrace::cli {

struct CheckpointFlags {
  std::string save, save_every, resume, weights;
  std::string save_errors = "stop";
  bool narrow_weights = false;
  std::int64_t keep = 2;
  std::int64_t keep_every = 0;

  // Found by take_settings.
  std::string from;            ///< what to resume; empty: nothing
  std::int64_t from_step = 0;  ///< of the newest checkpoint there that can be read
  std::string divisor;         ///< of its features (feature_divisor.hpp); empty: it names none
  std::string taken;  ///< of the pipeline's options, those that came from there: "-p 2, ..."
};

void add_checkpoint_flags(CLI::App& verb, CheckpointFlags& flags);

/// Where a run goes on from a checkpoint: gives every option that was not typed the value that it
/// has there. `world`: the processes of the job, 0 where this one is all of it; -p and -d are taken
/// where they can be shared out. Throws InvalidArgument naming the option, also for an option whose
/// value is empty, and DataError where nothing can be read.
void take_settings(CLI::App& verb, CheckpointFlags& flags, int world = 0);

/// `data` and `lengths` are what was typed, for who looks at the checkpoint or goes on from it.
/// Throws InvalidArgument naming the option.
[[nodiscard]] SaveOptions save_options(const CheckpointFlags& flags,
                                       const std::string& data,
                                       const std::string& lengths);

}  // namespace millrace::cli
