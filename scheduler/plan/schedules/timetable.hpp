// Timetable: one row of unit cells per rank of a V pipeline, each blank or one of six symbols. The
// search over building blocks rewrites it; the micro-batch of a cell is how often its symbol
// occurred before on the rank.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "millrace/scheduler/plan/generators.hpp"
#include "plan/search/work.hpp"

namespace millrace::generators {

/// Forward of chunk 0 and 1, input half of chunk 1 and 0, weight half of chunk 1 and 0.
enum Symbol : std::int8_t { kF, kf, kB, kb, kW, kw, kBlank };

inline constexpr int kSymbols = 6;

using TimetableRow = std::vector<Symbol>;
using Timetable = std::vector<TimetableRow>;
using SymbolCount = std::array<int, kSymbols>;

[[nodiscard]] constexpr bool is_forward(Symbol symbol) {
  return symbol == kF || symbol == kf;
}
[[nodiscard]] constexpr bool is_weight(Symbol symbol) {
  return symbol == kW || symbol == kw;
}
/// Change of the number of chunk activations held.
[[nodiscard]] constexpr int held(Symbol symbol) {
  return is_forward(symbol) ? 1 : is_weight(symbol) ? -1 : 0;
}

[[nodiscard]] SymbolCount count(const TimetableRow& line);

/// Most chunk activations that any rank holds.
[[nodiscard]] int peak(const Timetable& timetable);
[[nodiscard]] int peak(const TimetableRow& line);

/// Where every symbol of every rank stands, by micro-batch.
class Columns {
 public:
  explicit Columns(const Timetable& timetable);

  /// Column of the symbol's `index`-th occurrence on the rank; kNone when there is none.
  [[nodiscard]] int at(int rank, Symbol symbol, int index) const;
  void set(int rank, Symbol symbol, int index, int column);

  /// Column of what (rank, symbol, index) needs: the neighbour's same symbol, the chunk before at
  /// the turning points, the input half for a weight half; -1 when it needs nothing.
  [[nodiscard]] int needed(int rank, Symbol symbol, int index) const;

  static constexpr int kNone = 1 << 30;

 private:
  std::vector<std::array<std::vector<int>, kSymbols>> columns_;
};

/// Ticks of the three ops of a chunk and of a message.
struct TimetableCosts {
  double forward = 1, input = 1, weight = 1, latency = 0;
};

/// The order of the timetable run as early as possible.
struct TimetableTimes {
  bool complete = false;  ///< false: the order has a cycle
  double span = 0;        ///< longest time from a rank's first start to its last end
  std::vector<std::vector<double>> start;  ///< per rank and non-blank cell
};
[[nodiscard]] TimetableTimes run_timetable(const Timetable& timetable,
                                           const TimetableCosts& costs,
                                           plan::Work& work);

/// Moves every symbol to the first column that its rank's order and its data allow (unit costs).
/// False when the order has a cycle.
[[nodiscard]] bool squeeze(Timetable& timetable, plan::Work& work);

/// Columns left to right: moves into each blank cell the first later symbol that may run there
/// without any rank holding more than `cap`.
void fill_holes(Timetable& timetable, int cap, plan::Work& work);

/// The program of the timetable; with `fused`, the weight halves
/// are part of full backwards.
[[nodiscard]] Program timetable_program(const Timetable& timetable,
                                        const ScheduleOptions& options,
                                        bool fused);

}  // namespace millrace::generators
