// The flags of train that say how many samples an update sees, and in which portions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "millrace/core/error.hpp"
#include "millrace/training/trainer_options.hpp"

namespace millrace::cli {

struct BatchFlags {
  std::optional<std::int64_t> batch_size, effective_batch, micro_batch_size;
  std::int64_t accumulate = 1;
  std::string accumulate_order;  ///< empty: the usual one
  std::string scale_lr;
};

/// `flags` must outlive the verb.
void add_batch_flags(CLI::App& verb, BatchFlags& flags);

/// Throws InvalidArgument for a number out of its range, naming the option.
void check_batch(const BatchFlags& flags);

/// Sets the mini-batch and its passes; the options know their micro-batches. `micro_batches` is the
/// option that says them, or the plan; `copies` share them out. Throws InvalidArgument.
void set_batch(const BatchFlags& flags,
               const ParameterText& micro_batches,
               std::int64_t copies,
               TrainerOptions& options);

/// Scales the learning rate, which is set, with the mini-batch. Throws InvalidArgument.
void scale_rate(const BatchFlags& flags, TrainerOptions& options);

/// What is told at the start: samples per update, micro-batches and their sizes, and the learning
/// rate if it was scaled. `samples`: of a mini-batch, which the data may have fewer of.
[[nodiscard]] std::string batch_line(const BatchFlags& flags,
                                     const TrainerOptions& options,
                                     std::int64_t copies,
                                     std::int64_t samples);

}  // namespace millrace::cli
