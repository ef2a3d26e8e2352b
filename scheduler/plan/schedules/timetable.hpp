// Timetable: one row of unit cells per rank of a V pipeline, each blank or a symbol. All schedules
// of V building blocks are made by rewriting one; the micro-batch of a cell is how often its symbol
// occurred before on the rank.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "millrace/scheduler/plan/generators.hpp"
#include "plan/model/work.hpp"

namespace millrace::generators {

/// Forward of chunk 0 and 1, input half of chunk 1 and 0, weight half of chunk 1 and 0, and of
/// whichever backward comes next.
enum Symbol : std::uint8_t { kF, kf, kB, kb, kW, kw, kOwed, kBlank };

inline constexpr int kSymbols = 7;

using TimetableRow = std::vector<Symbol>;
using Timetable = std::vector<TimetableRow>;
using SymbolCount = std::array<int, kSymbols>;

[[nodiscard]] constexpr bool is_forward(Symbol symbol) {
  return symbol == kF || symbol == kf;
}
[[nodiscard]] constexpr bool is_weight(Symbol symbol) {
  return symbol == kW || symbol == kw || symbol == kOwed;
}
[[nodiscard]] constexpr bool is_input(Symbol symbol) {
  return symbol == kB || symbol == kb;
}
/// Change of the number of chunk activations held.
[[nodiscard]] constexpr int held(Symbol symbol) {
  return is_forward(symbol) ? 1 : is_weight(symbol) ? -1 : 0;
}

/// Most chunk activations that any rank holds; of a part of a row, before which there are `live`.
[[nodiscard]] int peak(const Timetable& timetable);
[[nodiscard]] int peak(std::span<const Symbol> line, int live = 0);

/// Ticks of the three ops of a chunk and of a message.
struct TimetableCosts {
  double forward = 1, input = 1, weight = 1, latency = 0;
};

/// Runs the order of the timetable as early as possible. The longest time from a rank's first start
/// to its last end; none when the order has a cycle.
[[nodiscard]] std::optional<double> span_of(const Timetable& timetable,
                                            const TimetableCosts& costs,
                                            plan::Work& work);

/// Moves every symbol to the first column that its rank's order and its data allow (unit costs).
/// False when the order has a cycle.
[[nodiscard]] bool squeeze(Timetable& timetable, plan::Work& work);

/// Columns left to right: moves into each blank cell the first later symbol that may run there
/// without any rank holding more than `cap`.
void fill_holes(Timetable& timetable, int cap, plan::Work& work);

/// Gives the cells of a row that no pass stands in to weight halves (kOwed): to the `pending` that
/// are owed before it and to those of its own backwards, and what is left to cells behind its end.
void give_weights(TimetableRow& line, int pending = 0);

/// Every cell of a rank from column `from` on that is blank or kOwed takes a weight half that is
/// owed, of chunk 1 before chunk 0.
void name_weights(TimetableRow& line, std::size_t from = 0);

/// Writes a symbol `number` times, at `column` and every `step` after it; a negative step goes to
/// the left. False when a cell is taken or before the first.
bool put_every(TimetableRow& line, int column, int step, Symbol symbol, int number);

/// What pull_in moves.
enum class Pull : std::uint8_t {
  Whole,   ///< every pass, a backward together with the weight half behind it
  Ends,    ///< passes and weight halves before rank 0's first b and after its last F
  Passes,  ///< passes after rank 0's last F; weight halves kOwed make way and are given again
};

/// Columns left to right: moves each of these to the first column after its data that is free and
/// where no rank then holds more than `cap`.
void pull_in(Timetable& timetable, int cap, Pull what, plan::Work& work);

/// The program of the timetable. Weight halves kOwed are those of the rank's backwards in their
/// order, whatever the chunk; with `fused`, all are part of full backwards.
[[nodiscard]] Program timetable_program(const Timetable& timetable,
                                        int micro_batches,
                                        Placement placement,
                                        bool fused = false);

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
