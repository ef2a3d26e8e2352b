// The flags of `train` about checkpoints: where and when to save, what to go on from.
#pragma once

#include <cstdint>
#include <string>

#include <CLI/CLI.hpp>

#include "millrace/training/trainer_options.hpp"

namespace millrace::cli {

struct CheckpointFlags {
  std::string save, save_every, resume, weights;
  std::int64_t keep = 2;
  std::int64_t keep_every = 0;

  // Found by take_settings.
  std::string from;            ///< what to resume; empty: nothing
  std::int64_t from_step = 0;  ///< of the newest checkpoint there whose manifest can be read
  std::string divisor;         ///< of its features (feature_divisor.hpp); empty: it names none
};

void add_checkpoint_flags(CLI::App& verb, CheckpointFlags& flags);

/// Where a run goes on from a checkpoint: gives every option that was not typed the value that it
/// has there. Throws InvalidArgument naming the option, DataError where nothing can be read.
void take_settings(CLI::App& verb, CheckpointFlags& flags);

/// `data` and `lengths` are what was typed, for who looks at the checkpoint or goes on from it.
/// Throws InvalidArgument naming the option.
[[nodiscard]] SaveOptions save_options(const CheckpointFlags& flags,
                                       const std::string& data,
                                       const std::string& lengths);

}  // namespace millrace::cli
