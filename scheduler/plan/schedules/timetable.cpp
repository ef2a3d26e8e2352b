// What every rewrite of a timetable needs: counts, peaks, positions, times, squeezing.
#include "plan/schedules/timetable.hpp"

#include <algorithm>
#include <utility>

namespace millrace::generators {

namespace {

bool moves_right(Symbol symbol) {
  return symbol == kF || symbol == kB;
}

/// The symbol that must have run before on the same rank, where no neighbour feeds it.
Symbol local_predecessor(Symbol symbol) {
  constexpr std::array<Symbol, kSymbols> before = {kBlank, kF, kf, kB, kB, kb, kBlank};
  return before[static_cast<std::size_t>(symbol)];
}

/// The rank whose same symbol feeds this one; -1 when the need is local.
int feeder(int rank, Symbol symbol, int ranks) {
  if (is_weight(symbol)) return -1;
  const int from = moves_right(symbol) ? rank - 1 : rank + 1;
  return from < ranks ? from : -1;
}

double ticks(const TimetableCosts& costs, Symbol symbol) {
  return is_forward(symbol) ? costs.forward : is_weight(symbol) ? costs.weight : costs.input;
}

/// Runs the ranks in turn, each as far as its data allow.
class TimetableRun {
 public:
  TimetableRun(const Timetable& timetable, const TimetableCosts& costs) : rows_(timetable.size()) {
    for (std::size_t symbol = 0; symbol < kSymbols; ++symbol)
      ticks_[symbol] = ticks(costs, static_cast<Symbol>(symbol));
    times_.start.resize(timetable.size());
    for (std::size_t rank = 0; rank < timetable.size(); ++rank) fill(rank, timetable[rank]);
    for (std::size_t rank = 0; rank < timetable.size(); ++rank) feed(rank, costs.latency);
  }

  TimetableTimes run(plan::Work& work) {
    bool moved = true;
    while (moved) {
      moved = false;
      work.spend(8 * rows_.size());
      for (std::size_t rank = 0; rank < rows_.size(); ++rank) moved = advance(rank) || moved;
      for (std::size_t rank = rows_.size(); rank-- > 0;) moved = advance(rank) || moved;
    }
    times_.complete = true;
    for (std::size_t rank = 0; rank < rows_.size(); ++rank) {
      times_.complete = times_.complete && rows_[rank].next == rows_[rank].cells.size();
      if (!times_.start[rank].empty())
        times_.span = std::max(times_.span, rows_[rank].clock - times_.start[rank].front());
    }
    return std::move(times_);
  }

 private:
  /// The ends of one symbol on one rank, by micro-batch, as far as it has run.
  using Ends = std::vector<double>;

  /// What a symbol waits for: the occurrence of the same number there, and `latency` more.
  struct Feed {
    const Ends* ends = nullptr;
    double latency = 0;
  };

  struct Row {
    std::vector<Symbol> cells;  // without the blanks
    std::size_t next = 0;
    double clock = 0;
    std::array<Ends, kSymbols> ends;
    std::array<Feed, kSymbols> feeds;
  };

  void fill(std::size_t rank, const TimetableRow& line) {
    Row& row = rows_[rank];
    row.cells.reserve(line.size());
    for (const Symbol symbol : line)
      if (symbol != kBlank) row.cells.push_back(symbol);
    const SymbolCount counts = count(line);
    for (std::size_t symbol = 0; symbol < kSymbols; ++symbol)
      row.ends[symbol].reserve(static_cast<std::size_t>(counts[symbol]));
    times_.start[rank].reserve(row.cells.size());
  }

  /// A local need adds no time: it has ended when the rank is free.
  void feed(std::size_t rank, double latency) {
    for (std::size_t column = 0; column < kSymbols; ++column) {
      const auto symbol = static_cast<Symbol>(column);
      const int from = feeder(static_cast<int>(rank), symbol, static_cast<int>(rows_.size()));
      Feed& feed = rows_[rank].feeds[column];
      if (from >= 0)
        feed = {&rows_[static_cast<std::size_t>(from)].ends[column], latency};
      else if (const Symbol before = local_predecessor(symbol); before != kBlank)
        feed = {&rows_[rank].ends[static_cast<std::size_t>(before)], 0};
    }
  }

  bool advance(std::size_t rank) {
    Row& row = rows_[rank];
    std::vector<double>& starts = times_.start[rank];
    const std::size_t first = row.next;
    for (; row.next < row.cells.size(); ++row.next) {
      const auto column = static_cast<std::size_t>(row.cells[row.next]);
      Ends& ends = row.ends[column];
      const Feed& feed = row.feeds[column];
      double start = row.clock;
      if (feed.ends != nullptr) {
        if (ends.size() >= feed.ends->size()) break;
        start = std::max(start, (*feed.ends)[ends.size()] + feed.latency);
      }
      row.clock = start + ticks_[column];
      ends.push_back(row.clock);
      starts.push_back(start);
    }
    return row.next > first;
  }

  std::array<double, kSymbols> ticks_{};
  std::vector<Row> rows_;
  TimetableTimes times_;
};

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
  const int from = feeder(rank, symbol, static_cast<int>(columns_.size()));
  if (from >= 0) return at(from, symbol, index);
  const Symbol before = local_predecessor(symbol);
  return before == kBlank ? -1 : at(rank, before, index);
}

TimetableTimes run_timetable(const Timetable& timetable,
                             const TimetableCosts& costs,
                             plan::Work& work) {
  return TimetableRun(timetable, costs).run(work);
}

bool squeeze(Timetable& timetable, plan::Work& work) {
  const TimetableTimes times = run_timetable(timetable, {}, work);
  if (!times.complete) return false;
  for (std::size_t rank = 0; rank < timetable.size(); ++rank) {
    const auto& start = times.start[rank];
    TimetableRow squeezed(start.empty() ? 0 : static_cast<std::size_t>(start.back()) + 1, kBlank);
    std::size_t next = 0;
    for (const Symbol symbol : timetable[rank])
      if (symbol != kBlank) squeezed[static_cast<std::size_t>(start[next++])] = symbol;
    timetable[rank] = std::move(squeezed);
  }
  return true;
}

Program timetable_program(const Timetable& timetable, const ScheduleOptions& options, bool fused) {
  constexpr std::array kOps = {Op::Forward,
                               Op::Forward,
                               Op::BackwardInput,
                               Op::BackwardInput,
                               Op::BackwardWeight,
                               Op::BackwardWeight};
  Program program{.shape = {.ranks = options.ranks,
                            .micro_batches = options.micro_batches,
                            .placement = Placement::vee(options.ranks)}};
  for (int rank = 0; rank < options.ranks; ++rank) {
    std::vector<Action> list;
    SymbolCount next{};
    for (const Symbol symbol : timetable[static_cast<std::size_t>(rank)]) {
      if (symbol == kBlank || (fused && is_weight(symbol))) continue;
      const bool second = symbol == kf || symbol == kB || symbol == kW;
      const Op op = kOps[static_cast<std::size_t>(symbol)];
      list.push_back({.op = fused && op == Op::BackwardInput ? Op::Backward : op,
                      .stage = Stage{second ? 2 * options.ranks - 1 - rank : rank},
                      .micro_batch = MicroBatch{next[static_cast<std::size_t>(symbol)]++},
                      .slice = {}});
    }
    program.ranks.push_back(std::move(list));
  }
  return program;
}

}  // namespace millrace::generators
