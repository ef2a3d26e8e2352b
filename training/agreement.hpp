// What the ranks of one training must have in common, compared by themselves before anything waits
// for a message that will never come: plan and settings when a trainer is made, data when it is
// read.
#pragma once

#include "millrace/training/dataset.hpp"
#include "millrace/training/state.hpp"
#include "millrace/training/trainer.hpp"
#include "training/batch_digest.hpp"

namespace millrace {

/// The parts, when all members of their group have the same program and settings. Throws Mismatch
/// on every member, naming what differs, the member and both values.
[[nodiscard]] TrainerParts agreed(TrainerParts parts, const TrainerOptions& options);

/// Compares how much data the members go through and in which portions and, where they hold it, its
/// bytes: members between the first and the last stage need to know only how much it is. Throws as
/// `agreed`. Cost: one pass over the data.
void agree_on_data(ProcessGroup& group, const Dataset& data, std::int64_t batch_size);

/// Throws Mismatch on every member: names two that were given different mini-batches, and the
/// likely cause. A collective.
[[noreturn]] void refuse_batches(ProcessGroup& group, const BatchDigest& mine);

/// Compares how far the members have come and how far they will go. Throws as `agreed`.
void agree_on_place(ProcessGroup& group,
                    const TrainingCounters& counters,
                    const BatchSource& batches);

}  // namespace millrace
