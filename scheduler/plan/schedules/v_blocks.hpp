// Building blocks of the V pipelines: where each rank runs each symbol of micro-batch 0, repeated
// every period to a timetable; and the enumeration of the blocks that are one rank's pattern
// shifted from rank to rank.
#pragma once

#include <array>
#include <functional>
#include <vector>

#include "plan/schedules/timetable.hpp"

namespace millrace::generators {

inline constexpr int kPeriod = 6;  ///< unit ops that a rank owes per micro-batch

/// By rank the column of every symbol up to kw; kNowhere: it is left out.
using VBlock = std::vector<std::array<int, kPeriod>>;

inline constexpr int kNowhere = -1;

/// `micro_batches` repetitions, one every period.
[[nodiscard]] Timetable repeat(const VBlock& block, int micro_batches);

/// What the visitor of the enumeration makes of a block.
enum class Verdict : std::uint8_t { GoOn, TooMuchMemory, Best };

/// Visits the blocks whose rank 0 has F, f, B, b at any residues modulo the period, and rank r+1
/// those of rank r shifted by (delta, -1, delta, -1): delta is `near` for the first `near_ranks`
/// steps, `far` after. Weight halves take the first free residues, and all symbols follow one
/// another down and up the V. After TooMuchMemory the same shifts are not tried with a larger
/// `near_ranks`, which would hold more; after Best nothing is tried.
void for_each_block(int ranks, const std::function<Verdict(const VBlock&)>& visit);

}  // namespace millrace::generators
