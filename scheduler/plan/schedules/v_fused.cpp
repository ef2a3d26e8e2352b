// 1F1B-V (Qi et al. 2024, "Pipeline Parallelism with Controllable Memory"): one building block
// whose input and weight halves stay together, so that the backward is one op of two cells.
#include <algorithm>
#include <array>
#include <vector>

#include "plan/schedules/v_blocks.hpp"
#include "plan/schedules/v_zb.hpp"
#include "plan/search/work.hpp"

namespace millrace::generators {

namespace {

/// Forwards down and up the V one cell apart, then backwards down and up two cells apart, with a
/// run of three idle cells after every third backward.
Timetable fused_block(int ranks, int micro_batches) {
  Timetable timetable(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    TimetableRow& line = timetable[static_cast<std::size_t>(rank)];
    put_every_period(line, rank, kF, micro_batches);
    put_every_period(line, 2 * ranks - 1 - rank, kf, micro_batches);
  }

  int column = 2 * ranks + (ranks % 3 == 0 ? 3 : 0);
  int in_run = (3 - (ranks + 2) % 3) % 3;
  for (const Symbol input : {kB, kb})
    for (int step = 0; step < ranks; ++step) {
      TimetableRow& line =
          timetable[static_cast<std::size_t>(input == kB ? step : ranks - 1 - step)];
      put_every_period(line, column, input, micro_batches);
      put_every_period(line, column + 1, input == kB ? kW : kw, micro_batches);
      column += 2;
      if (++in_run == 3) {
        in_run = 0;
        column += 3;
      }
    }
  return timetable;
}

/// Moves every op, in the order of its present column, to the first free cells after its data where
/// its rank still holds at most `cap`.
class PullIn {
 public:
  PullIn(Timetable& timetable, int cap)
      : timetable_(timetable),
        cap_(cap),
        columns_(timetable),
        seen_(timetable.size()),
        live_(timetable.size()) {}

  void run(plan::Work& work) {
    std::size_t longest = 0;
    for (const TimetableRow& line : timetable_) longest = std::max(longest, line.size());
    for (std::size_t column = 0; column < longest; ++column) {
      work.spend(4 * timetable_.size());
      for (std::size_t rank = 0; rank < timetable_.size(); ++rank) {
        if (column >= timetable_[rank].size()) continue;
        const Symbol symbol = timetable_[rank][column];
        if (symbol != kBlank && !is_weight(symbol)) {
          const int index = seen_[rank][static_cast<std::size_t>(symbol)]++;
          pull(static_cast<int>(rank), symbol, index, static_cast<int>(column));
        }
        live_[rank] += held(symbol);
      }
    }
  }

 private:
  static int cells(Symbol symbol) { return is_forward(symbol) ? 1 : 2; }

  void pull(int rank, Symbol symbol, int index, int column) {
    // What it needs is of its own kind, except that the first backward follows a forward.
    const int needed = columns_.needed(rank, symbol, index);
    const bool after_forward = is_forward(symbol) || (symbol == kB && rank == 0);
    const int ready = needed < 0 ? 0 : needed + (after_forward ? 1 : 2);
    for (int target = ready; target < column; ++target)
      if (is_free(rank, symbol, target, column) && fits(rank, symbol, target, column)) {
        move(rank, symbol, column, target);
        columns_.set(rank, symbol, index, target);
        return;
      }
  }

  [[nodiscard]] bool is_free(int rank, Symbol symbol, int target, int column) const {
    const TimetableRow& line = timetable_[static_cast<std::size_t>(rank)];
    for (int cell = target; cell < target + cells(symbol); ++cell)
      if (cell != column && line[static_cast<std::size_t>(cell)] != kBlank) return false;
    return true;
  }

  /// Backwards only free memory earlier; a forward adds one activation to every cell it passes.
  [[nodiscard]] bool fits(int rank, Symbol symbol, int target, int column) const {
    if (!is_forward(symbol)) return true;
    const TimetableRow& line = timetable_[static_cast<std::size_t>(rank)];
    int now = live_[static_cast<std::size_t>(rank)], most = now;
    for (int cell = column - 1; cell > target; --cell)
      most = std::max(most, now -= held(line[static_cast<std::size_t>(cell)]));
    return most < cap_;
  }

  void move(int rank, Symbol symbol, int column, int target) {
    TimetableRow& line = timetable_[static_cast<std::size_t>(rank)];
    const Symbol second = cells(symbol) == 2 ? line[static_cast<std::size_t>(column) + 1] : kBlank;
    for (int cell = column; cell < column + cells(symbol); ++cell)
      line[static_cast<std::size_t>(cell)] = kBlank;
    line[static_cast<std::size_t>(target)] = symbol;
    if (second == kBlank) return;
    line[static_cast<std::size_t>(target) + 1] = second;
    live_[static_cast<std::size_t>(rank)] += held(second);
  }

  Timetable& timetable_;
  int cap_;
  Columns columns_;
  std::vector<SymbolCount> seen_;
  std::vector<int> live_;  // per rank: chunk activations held after the columns that were visited
};

}  // namespace

Program one_f_one_b_v(const ScheduleOptions& options) {
  Timetable timetable = fused_block(options.ranks, options.micro_batches);
  const int cap = peak(timetable);
  plan::Work work(options.stop);
  PullIn(timetable, cap).run(work);
  return timetable_program(timetable, options, true);
}

}  // namespace millrace::generators
