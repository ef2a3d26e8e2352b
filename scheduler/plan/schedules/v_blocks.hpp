// Building blocks of the V pipelines: the residues modulo six at which each rank runs each symbol,
// their enumeration, and their repetition to a timetable.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <vector>

#include "plan/schedules/timetable.hpp"

namespace millrace::generators {

inline constexpr int kPeriod = 6;  ///< unit ops that a rank owes per micro-batch

/// Residue of every symbol of one rank, up to kw; all distinct.
using Residues = std::array<int, kPeriod>;
/// One per rank.
using VBlock = std::vector<Residues>;

/// F, f, B, b of rank 0, then rank r+1 = rank r shifted by (delta, -1, delta, -1): delta is `near`
/// for the first `near_ranks` steps, `far` after. Weight halves take the first free residues. Empty
/// when two symbols of a rank meet.
[[nodiscard]] std::optional<VBlock> shifted_block(
    int ranks, const std::array<int, 4>& first, int near, int far, int near_ranks);

/// What the visitor of the enumeration makes of a block.
enum class Verdict : std::uint8_t { GoOn, TooMuchMemory, Best };

/// Visits all shifted blocks; after TooMuchMemory the same shifts are not tried with a larger
/// `near_ranks`, which would hold more; after Best nothing is tried.
void for_each_block(int ranks, const std::function<Verdict(const VBlock&)>& visit);

/// Writes a symbol at column `first` and every period after it.
void put_every_period(TimetableRow& line, int first, Symbol symbol, int micro_batches);

/// `micro_batches` repetitions: the symbols follow one another down and up the V, each at the first
/// column from a running cursor that has its residue.
[[nodiscard]] Timetable repeat(const VBlock& block, int micro_batches);

}  // namespace millrace::generators
