// What every rewrite of a timetable needs: counts, peaks, positions, times, squeezing.
#include "plan/schedules/timetable.hpp"

#include <algorithm>
#include <utility>

#include "plan/model/replay.hpp"
#include "plan/schedules/pass_board.hpp"

namespace millrace::generators {

namespace {

/// Runs every row as early as possible and calls `ran(rank, symbol, start)`. The longest time from
/// a rank's first start to its last end; none when the order has a cycle.
template <class Ran>
std::optional<double> run_rows(const Timetable& timetable,
                               const TimetableCosts& costs,
                               plan::Work& work,
                               Ran&& ran) {
  const std::vector<RankCosts> by_rank(
      timetable.size(),
      {.forward = {costs.forward}, .input = {costs.input}, .weight = {costs.weight}});
  const auto micro_batches = std::ranges::count(timetable.front(), kF);
  PassBoard board(by_rank, costs.latency, static_cast<int>(micro_batches), 2);
  std::vector<double> begin(timetable.size(), plan::kNever);
  std::vector<Node> first = {0};
  for (const TimetableRow& line : timetable)
    first.push_back(first.back() + static_cast<Node>(line.size()));

  const auto run_row = [&](Rank on, Node place, Node end) {
    work.spend(8);
    const int rank = on.value;
    auto cell = timetable[on.index()].begin() + (place - first[on.index()]);
    for (; place < end; ++place, ++cell) {
      const Symbol symbol = *cell;
      if (symbol == kBlank) continue;
      if (!is_weight(symbol) && !board.is_fed(rank, symbol)) {
        const int feeder = board.feeder(rank, symbol);
        // What it waits for as a number: which pass, and how often that has run before.
        const auto wanted = static_cast<Node>(board.count(rank, symbol) * kSymbols + symbol);
        return plan::Halt{place, wanted, static_cast<std::size_t>(feeder < 0 ? rank : feeder)};
      }
      const double start = is_weight(symbol) ? board.run_weight(rank) : board.run(rank, symbol);
      begin[on.index()] = std::min(begin[on.index()], start);
      ran(on.index(), symbol, start);
    }
    return plan::Halt{place};
  };
  const auto has_run = [&](std::size_t on, Node wanted) {
    return board.count(static_cast<int>(on), static_cast<int>(wanted % kSymbols)) >
           static_cast<int>(wanted / kSymbols);
  };
  if (!plan::Replay(first).run_lists(run_row, has_run)) return std::nullopt;
  double span = 0;
  for (int rank = 0; const double start : begin)
    span = std::max(span, board.at(rank++).clock - start);
  return span;
}

}  // namespace

int peak(std::span<const Symbol> line, int live) {
  int most = live;
  for (const Symbol symbol : line) most = std::max(most, live += held(symbol));
  return most;
}

int peak(const Timetable& timetable) {
  int most = 0;
  for (const TimetableRow& line : timetable) most = std::max(most, peak(line));
  return most;
}

bool put_every(TimetableRow& line, int column, int step, Symbol symbol, int number) {
  for (; number > 0; --number, column += step) {
    if (column < 0) return false;
    const auto cell = static_cast<std::size_t>(column);
    if (cell >= line.size()) line.resize(cell + 1, kBlank);
    if (line[cell] != kBlank) return false;
    line[cell] = symbol;
  }
  return true;
}

std::optional<double> span_of(const Timetable& timetable,
                              const TimetableCosts& costs,
                              plan::Work& work) {
  return run_rows(timetable, costs, work, [](std::size_t, Symbol, double) {});
}

bool squeeze(Timetable& timetable, plan::Work& work) {
  Timetable squeezed(timetable.size());
  for (std::size_t r = 0; r < squeezed.size(); ++r) squeezed[r].reserve(timetable[r].size());
  const auto span = run_rows(timetable, {}, work, [&](std::size_t r, Symbol symbol, double start) {
    squeezed[r].resize(static_cast<std::size_t>(start), kBlank);
    squeezed[r].push_back(symbol);
  });
  if (span) timetable = std::move(squeezed);
  return span.has_value();
}

Program timetable_program(const Timetable& timetable,
                          int micro_batches,
                          Placement placement,
                          bool fused) {
  const int ranks = static_cast<int>(timetable.size());
  Program program{
      .shape = {.ranks = ranks, .micro_batches = micro_batches, .placement = std::move(placement)}};
  const auto is_left_out = [&](Symbol symbol) {
    return symbol == kBlank || (fused && is_weight(symbol));
  };
  for (int rank = 0; const TimetableRow& line : timetable) {
    std::vector<Action>& list = program.ranks.emplace_back();
    list.reserve(line.size() - static_cast<std::size_t>(std::ranges::count_if(line, is_left_out)));
    SymbolCount next{};
    auto owner = line.begin();  // of the next kOwed, or before it
    for (Symbol symbol : line) {
      if (is_left_out(symbol)) continue;
      if (symbol == kOwed) {
        owner = std::ranges::find_if(owner, line.end(), is_input);
        symbol = *owner++ == kB ? kW : kw;
      }
      const bool second = symbol == kf || symbol == kB || symbol == kW;
      list.push_back({.op = is_forward(symbol)  ? Op::Forward
                            : is_weight(symbol) ? Op::BackwardWeight
                            : fused             ? Op::Backward
                                                : Op::BackwardInput,
                      .stage = Stage{second ? 2 * ranks - 1 - rank : rank},
                      .micro_batch = MicroBatch{next[symbol]++},
                      .slice = {}});
    }
    ++rank;
  }
  return program;
}

}  // namespace millrace::generators
