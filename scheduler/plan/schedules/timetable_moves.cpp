// The two ways in which a timetable is filled from the left: each blank takes the nearest symbol
// that may come, or each symbol goes to the first cell where it may stand.
#include <algorithm>
#include <utility>

#include "plan/schedules/timetable.hpp"

namespace millrace::generators {

namespace {

/// What a rank holds between two columns.
struct Held {
  int live = 0;     // chunk activations
  int pending = 0;  // backwards whose weight half has not run

  void add(Symbol symbol, int sign = 1) {
    live += sign * held(symbol);
    if (is_input(symbol)) pending += sign;
    if (is_weight(symbol)) pending -= sign;
  }
  void take_back(Symbol symbol) { add(symbol, -1); }
};

/// A symbol, with what stands behind it and goes with it.
struct PlacedPass {
  int rank, column, width;
  Symbol symbol;
  int index;
};

/// Columns from left to right, in each the ranks in turn: what each rank holds and has run left of
/// the column that is visited, where every symbol stands, and moves that keep both in order.
class Sweep {
 public:
  Sweep(Timetable& timetable, int cap)
      : timetable_(timetable),
        cap_(cap),
        columns_(timetable.size()),
        seen_(timetable.size()),
        held_(timetable.size()) {
    for (std::size_t rank = 0; rank < timetable.size(); ++rank) {
      for (int column = 0; const Symbol symbol : timetable[rank])
        columns_[rank][symbol].push_back(column++);
      for (auto& columns : columns_[rank]) columns.push_back(kNone);
    }
  }

  /// Calls `visit(rank, column)`, which may move symbols from this column and from the right.
  template <class Visit>
  void run(plan::Work& work, Visit&& visit) {
    const std::size_t longest =
        std::ranges::max_element(timetable_, {}, &TimetableRow::size)->size();
    for (std::size_t column = 0; column < longest; ++column) {
      work.spend(timetable_.size());
      for (std::size_t rank = 0; rank < timetable_.size(); ++rank) {
        if (column >= timetable_[rank].size()) continue;
        visit(static_cast<int>(rank), static_cast<int>(column));
        held_[rank].add(timetable_[rank][column]);
      }
    }
  }

  [[nodiscard]] TimetableRow::iterator cell(int rank, int column) {
    return row(rank).begin() + column;
  }
  /// How often the rank has run the symbol, as far as the visitor counts it.
  [[nodiscard]] int& seen(int rank, Symbol symbol) {
    return seen_[static_cast<std::size_t>(rank)][symbol];
  }

  /// Fills a hole: of the next of each symbol to the right, nearest first, the first that may
  /// comes.
  void fill(int rank, int hole) {
    std::array<std::pair<int, Symbol>, kOwed> next;
    for (const Symbol symbol : {kF, kf, kB, kb, kW, kw})
      next[symbol] = {column(rank, symbol, seen(rank, symbol)), symbol};
    std::ranges::sort(next);
    for (const auto& [place, symbol] : next) {
      if (place == kNone) return;
      if (needed(rank, symbol, seen(rank, symbol)) >= hole) continue;
      const auto from = cell(rank, place), to = cell(rank, hole);
      if (is_forward(symbol) && peak({to, from}, held(rank).live) >= cap_) continue;
      column(rank, symbol, seen(rank, symbol)) = hole;
      return std::iter_swap(to, from);
    }
  }

  /// Moves an op to the first column where it may stand, if there is one before its own. Where
  /// `gives_weights`, weight halves make way and are given again.
  void pull(const PlacedPass& op, bool gives_weights) {
    const int ready = earliest(op);
    Held before = held(op.rank);
    for (int at = op.column; at > ready;) before.take_back(*cell(op.rank, --at));
    for (int target = ready; target < op.column; before.add(*cell(op.rank, target++))) {
      if (!is_free(op, target, before, gives_weights)) continue;
      if (!try_at(op, target, before, gives_weights)) continue;
      TimetableRow& line = row(op.rank);
      line.resize(std::max(line.size(), static_cast<std::size_t>(target) + changed_.size()),
                  kBlank);
      std::ranges::copy(changed_, line.begin() + target);
      column(op.rank, op.symbol, op.index) = target;
      for (; target < op.column; ++target) before.add(*cell(op.rank, target));
      held(op.rank) = before;
      return;
    }
  }

 private:
  static constexpr int kNone = 1 << 30;  // the column behind the last of a symbol

  [[nodiscard]] TimetableRow& row(int rank) { return timetable_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] Held& held(int rank) { return held_[static_cast<std::size_t>(rank)]; }
  /// Where the symbol's `index`-th occurrence on the rank stands.
  [[nodiscard]] int& column(int rank, Symbol symbol, int index) {
    return columns_[static_cast<std::size_t>(rank)][symbol][static_cast<std::size_t>(index)];
  }

  /// Column of what it needs: the neighbour's same symbol, the chunk before at the turning points,
  /// the input half for a weight half; -1 when it needs nothing.
  [[nodiscard]] int needed(int rank, Symbol symbol, int index) {
    if (symbol == kOwed) return -1;
    if (is_weight(symbol)) return column(rank, symbol == kW ? kB : kb, index);
    const int from = symbol % 2 == 0 ? rank - 1 : rank + 1;
    if (from >= 0 && from < static_cast<int>(timetable_.size())) return column(from, symbol, index);
    return symbol == kF ? -1 : column(rank, static_cast<Symbol>(symbol - 1), index);
  }

  /// First column after the op's data and after the one of its kind before it.
  [[nodiscard]] int earliest(const PlacedPass& op) {
    // What it needs is as wide as itself, except that the first backward follows a forward.
    const int width = op.symbol == kB && op.rank == 0 ? 1 : op.width;
    const int ready = std::max(0, needed(op.rank, op.symbol, op.index) + width);
    if (op.index == 0) return ready;
    return std::max(ready, column(op.rank, op.symbol, op.index - 1) + op.width);
  }

  /// Whether the op finds cells at `target`.
  [[nodiscard]] bool is_free(const PlacedPass& op,
                             int target,
                             const Held& before,
                             bool gives_weights) {
    if (is_weight(op.symbol) && before.pending == 0) return false;
    for (int at = target; at < target + op.width; ++at) {
      const Symbol symbol = *cell(op.rank, at);
      const bool gives_way = symbol == kBlank || (gives_weights && is_weight(symbol));
      if (at != op.column && !gives_way) return false;
    }
    return true;
  }

  /// Writes the cells that change from `target` on. False when the rank exceeds the cap.
  bool try_at(const PlacedPass& op, int target, const Held& before, bool gives_weights) {
    const auto from = cell(op.rank, target);
    changed_.assign(from, gives_weights ? row(op.rank).end() : cell(op.rank, op.column + op.width));
    for (auto to = changed_.begin(); to != changed_.begin() + op.width; ++to)
      std::iter_swap(to, to + (op.column - target));
    if (gives_weights) give_weights(changed_, before.pending);
    return peak(changed_, before.live) <= cap_;
  }

  Timetable& timetable_;
  int cap_;
  std::vector<std::array<std::vector<int>, kSymbols + 1>> columns_;  // by rank and symbol
  std::vector<SymbolCount> seen_;
  std::vector<Held> held_;
  TimetableRow changed_;
};

}  // namespace

void fill_holes(Timetable& timetable, int cap, plan::Work& work) {
  Sweep sweep(timetable, cap);
  sweep.run(work, [&](int rank, int column) {
    if (*sweep.cell(rank, column) == kBlank) sweep.fill(rank, column);
    if (const Symbol symbol = *sweep.cell(rank, column); symbol != kBlank)
      ++sweep.seen(rank, symbol);
  });
}

void pull_in(Timetable& timetable, int cap, Pull what, plan::Work& work) {
  const auto last_forward = std::ranges::count(timetable.front(), kF) - 1;
  bool in_warm_up = true, in_cool_down = false;
  Sweep sweep(timetable, cap);
  sweep.run(work, [&](int rank, int column) {
    const Symbol symbol = *sweep.cell(rank, column);
    if (symbol == kBlank || (is_weight(symbol) && what != Pull::Ends)) return;
    const int width = what == Pull::Whole && is_input(symbol) ? 2 : 1;
    const PlacedPass op{rank, column, width, symbol, sweep.seen(rank, symbol)++};
    in_warm_up = in_warm_up && (rank > 0 || symbol != kb);
    if (what == Pull::Whole || in_cool_down || (what == Pull::Ends && in_warm_up))
      sweep.pull(op, what == Pull::Passes);
    in_cool_down = in_cool_down || (!in_warm_up && symbol == kF && op.index == last_forward);
  });
}

void give_weights(TimetableRow& line, int pending) {
  for (std::size_t cell = 0; cell < line.size() || pending > 0; ++cell) {
    if (cell == line.size()) line.push_back(kBlank);
    if (is_input(line[cell])) ++pending;
    if (is_forward(line[cell]) || is_input(line[cell])) continue;
    line[cell] = pending > 0 ? kOwed : kBlank;
    if (pending > 0) --pending;
  }
}

void name_weights(TimetableRow& line, std::size_t from) {
  SymbolCount owed{};  // by weight half
  for (std::size_t cell = 0; cell < line.size() || owed[kW] + owed[kw] > 0; ++cell) {
    if (cell == line.size()) line.push_back(kBlank);
    Symbol& symbol = line[cell];
    if (cell >= from && (symbol == kBlank || symbol == kOwed))
      symbol = owed[kW] > 0 ? kW : owed[kw] > 0 ? kw : kBlank;
    if (is_input(symbol)) ++owed[symbol == kB ? kW : kw];
    if (is_weight(symbol)) --owed[symbol];
  }
}

}  // namespace millrace::generators
