// What every rewrite of a timetable needs: counts, peaks, positions, times, squeezing.
#include "plan/schedules/timetable.hpp"

#include <algorithm>
#include <utility>

#include "plan/schedules/pass_board.hpp"

namespace millrace::generators {

namespace {

/// Runs every row as early as possible and calls `ran(rank, symbol, start)`. False when the order
/// has a cycle.
template <class Ran>
bool run_rows(const Timetable& timetable, PassBoard& board, plan::Work& work, Ran&& ran) {
  std::vector<std::size_t> next(timetable.size());
  const auto advance = [&](std::size_t r) {
    const TimetableRow& line = timetable[r];
    const int rank = static_cast<int>(r);
    const std::size_t first = next[r];
    for (; next[r] < line.size(); ++next[r]) {
      const Symbol symbol = line[next[r]];
      if (symbol == kBlank) continue;
      if (is_weight(symbol) ? board.at(rank).owed == 0 : !board.is_fed(rank, symbol)) break;
      ran(r, symbol, is_weight(symbol) ? board.run_weight(rank) : board.run(rank, symbol));
    }
    return next[r] > first;
  };
  for (bool moved = true; moved;) {
    moved = false;
    work.spend(8 * timetable.size());
    for (std::size_t r = 0; r < timetable.size(); ++r) moved = advance(r) || moved;
    for (std::size_t r = timetable.size(); r-- > 0;) moved = advance(r) || moved;
  }
  for (std::size_t r = 0; r < timetable.size(); ++r)
    if (next[r] < timetable[r].size()) return false;
  return true;
}

/// The most micro-batches that a rank runs.
int micro_batches_of(const Timetable& timetable) {
  int most = 0;
  for (const TimetableRow& line : timetable) {
    const SymbolCount counts = count(line);
    for (const Symbol pass : {kF, kf, kB, kb}) most = std::max(most, counts[pass]);
  }
  return most;
}

}  // namespace

SymbolCount count(const TimetableRow& line) {
  SymbolCount counts{};
  for (const Symbol symbol : line)
    if (symbol != kBlank) ++counts[static_cast<std::size_t>(symbol)];
  return counts;
}

int peak(const TimetableRow& line) {
  int now = 0, most = 0;
  for (const Symbol symbol : line) most = std::max(most, now += held(symbol));
  return most;
}

int peak(const Timetable& timetable) {
  int most = 0;
  for (const TimetableRow& line : timetable) most = std::max(most, peak(line));
  return most;
}

Columns::Columns(const Timetable& timetable) : columns_(timetable.size()) {
  for (std::size_t rank = 0; rank < timetable.size(); ++rank)
    for (std::size_t column = 0; column < timetable[rank].size(); ++column)
      if (const Symbol symbol = timetable[rank][column]; symbol != kBlank)
        columns_[rank][static_cast<std::size_t>(symbol)].push_back(static_cast<int>(column));
}

int Columns::at(int rank, Symbol symbol, int index) const {
  const auto& all = columns_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(symbol)];
  return index < static_cast<int>(all.size()) ? all[static_cast<std::size_t>(index)] : kNone;
}

void Columns::set(int rank, Symbol symbol, int index, int column) {
  columns_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(symbol)]
          [static_cast<std::size_t>(index)] = column;
}

int Columns::needed(int rank, Symbol symbol, int index) const {
  if (is_weight(symbol)) return at(rank, symbol == kW ? kB : kb, index);
  const int from = symbol == kF || symbol == kB ? rank - 1 : rank + 1;
  if (from >= 0 && from < static_cast<int>(columns_.size())) return at(from, symbol, index);
  return symbol == kF ? -1 : at(rank, static_cast<Symbol>(symbol - 1), index);
}

std::optional<double> span_of(const Timetable& timetable,
                              const TimetableCosts& costs,
                              plan::Work& work) {
  const std::vector<RankCosts> by_rank(
      timetable.size(),
      {.forward = {costs.forward}, .input = {costs.input}, .weight = {costs.weight}});
  PassBoard board(by_rank, costs.latency, micro_batches_of(timetable), 2);
  std::vector<double> first(timetable.size(), -1);
  const bool complete = run_rows(timetable, board, work, [&](std::size_t r, Symbol, double start) {
    if (first[r] < 0) first[r] = start;
  });
  if (!complete) return std::nullopt;
  double span = 0;
  for (std::size_t r = 0; r < first.size(); ++r)
    span = std::max(span, board.at(static_cast<int>(r)).clock - std::max(0.0, first[r]));
  return span;
}

bool squeeze(Timetable& timetable, plan::Work& work) {
  const std::vector<RankCosts> by_rank(timetable.size(),
                                       {.forward = {1}, .input = {1}, .weight = {1}});
  PassBoard board(by_rank, 0, micro_batches_of(timetable), 2);
  Timetable squeezed(timetable.size());
  for (std::size_t r = 0; r < squeezed.size(); ++r) squeezed[r].reserve(timetable[r].size());
  const bool complete =
      run_rows(timetable, board, work, [&](std::size_t r, Symbol symbol, double start) {
        squeezed[r].resize(static_cast<std::size_t>(start), kBlank);
        squeezed[r].push_back(symbol);
      });
  if (complete) timetable = std::move(squeezed);
  return complete;
}

Program timetable_program(const Timetable& timetable,
                          int micro_batches,
                          Placement placement,
                          bool fused) {
  constexpr std::array kOps = {Op::Forward,
                               Op::Forward,
                               Op::BackwardInput,
                               Op::BackwardInput,
                               Op::BackwardWeight,
                               Op::BackwardWeight};
  const int ranks = static_cast<int>(timetable.size());
  Program program{
      .shape = {.ranks = ranks, .micro_batches = micro_batches, .placement = std::move(placement)}};
  for (int rank = 0; rank < ranks; ++rank) {
    const TimetableRow& line = timetable[static_cast<std::size_t>(rank)];
    const auto is_left_out = [&](Symbol symbol) {
      return symbol == kBlank || (fused && is_weight(symbol));
    };
    std::vector<Action> list;
    list.reserve(line.size() - static_cast<std::size_t>(std::ranges::count_if(line, is_left_out)));
    SymbolCount next{};
    for (const Symbol symbol : line) {
      if (is_left_out(symbol)) continue;
      const bool second = symbol == kf || symbol == kB || symbol == kW;
      const Op op = kOps[static_cast<std::size_t>(symbol)];
      list.push_back({.op = fused && op == Op::BackwardInput ? Op::Backward : op,
                      .stage = Stage{second ? 2 * ranks - 1 - rank : rank},
                      .micro_batch = MicroBatch{next[static_cast<std::size_t>(symbol)]++},
                      .slice = {}});
    }
    program.ranks.push_back(std::move(list));
  }
  return program;
}

}  // namespace millrace::generators
