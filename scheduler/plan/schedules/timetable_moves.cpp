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

/// Columns from left to right, in each the ranks in turn: what each rank holds and has run left of
/// the column that is visited, and where every symbol stands.
class Sweep {
 public:
  static constexpr int kNone = 1 << 30;  ///< the column behind the last of a symbol

  explicit Sweep(Timetable& timetable)
      : timetable_(timetable),
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

  [[nodiscard]] TimetableRow& row(int rank) { return timetable_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] Held& held_by(int rank) { return held_[static_cast<std::size_t>(rank)]; }
  /// How often the rank has run the symbol, as far as the visitor counts it.
  [[nodiscard]] int& seen(int rank, Symbol symbol) {
    return seen_[static_cast<std::size_t>(rank)][symbol];
  }
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

 private:
  Timetable& timetable_;
  std::vector<std::array<std::vector<int>, kSymbols + 1>> columns_;  // by rank and symbol
  std::vector<SymbolCount> seen_;
  std::vector<Held> held_;
};

/// A symbol, with what stands behind it and goes with it.
struct Op {
  int rank, column, width;
  Symbol symbol;
  int index;
};

/// Moves ops to the left within their row.
class Puller {
 public:
  /// Where `gives_weights`, weight halves make way and are given anew.
  Puller(Sweep& sweep, int cap, bool gives_weights)
      : sweep_(sweep), cap_(cap), gives_weights_(gives_weights) {}

  /// Moves the op to the first column where it may stand, if there is one before its own.
  void pull(const Op& op) {
    TimetableRow& line = sweep_.row(op.rank);
    const int ready = earliest(op);
    Held held = sweep_.held_by(op.rank);
    for (int column = op.column; column > ready;) held.take_back(line.begin()[--column]);
    for (int target = ready; target < op.column; held.add(line.begin()[target++])) {
      if (!is_free(op, target, held) || !try_at(op, target, held)) continue;
      line.resize(std::max(line.size(), static_cast<std::size_t>(target) + changed_.size()),
                  kBlank);
      std::ranges::copy(changed_, line.begin() + target);
      sweep_.column(op.rank, op.symbol, op.index) = target;
      for (; target < op.column; ++target) held.add(line.begin()[target]);
      sweep_.held_by(op.rank) = held;
      return;
    }
  }

 private:
  /// First column after the op's data and after the one of its kind before it.
  [[nodiscard]] int earliest(const Op& op) {
    // What it needs is as wide as itself, except that the first backward follows a forward.
    const int width = op.symbol == kB && op.rank == 0 ? 1 : op.width;
    const int ready = std::max(0, sweep_.needed(op.rank, op.symbol, op.index) + width);
    if (op.index == 0) return ready;
    return std::max(ready, sweep_.column(op.rank, op.symbol, op.index - 1) + op.width);
  }

  /// Whether the op finds room at `target`, before which the rank holds `held`.
  [[nodiscard]] bool is_free(const Op& op, int target, const Held& held) {
    if (is_weight(op.symbol) && held.pending == 0) return false;
    for (int column = target; column < target + op.width; ++column) {
      const Symbol symbol = sweep_.row(op.rank).begin()[column];
      const bool gives_way = symbol == kBlank || (gives_weights_ && is_weight(symbol));
      if (column != op.column && !gives_way) return false;
    }
    return true;
  }

  /// Writes the cells that change from `target` on. False when the rank exceeds the cap.
  bool try_at(const Op& op, int target, const Held& held) {
    const TimetableRow& line = sweep_.row(op.rank);
    changed_.assign(line.begin() + target,
                    gives_weights_ ? line.end() : line.begin() + op.column + op.width);
    const auto moved = changed_.begin() + (op.column - target);
    for (int cell = 0; cell < op.width; ++cell)
      std::iter_swap(changed_.begin() + cell, moved + cell);
    if (gives_weights_) give_weights(changed_, held.pending);
    return peak(changed_, held.live) <= cap_;
  }

  Sweep& sweep_;
  int cap_;
  bool gives_weights_;
  TimetableRow changed_;
};

}  // namespace

void fill_holes(Timetable& timetable, int cap, plan::Work& work) {
  Sweep sweep(timetable);
  const auto next = [&](int rank, Symbol symbol) -> int& {
    return sweep.column(rank, symbol, sweep.seen(rank, symbol));
  };
  // The next of each symbol to the right, nearest first; the first that may comes.
  const auto fill = [&](int rank, int column) {
    const auto hole = sweep.row(rank).begin() + column;
    std::array<std::pair<int, Symbol>, kOwed> nearest;
    for (const Symbol symbol : {kF, kf, kB, kb, kW, kw})
      nearest[symbol] = {next(rank, symbol), symbol};
    std::ranges::sort(nearest);
    for (const auto& [place, symbol] : nearest) {
      if (place == Sweep::kNone) return;
      if (sweep.needed(rank, symbol, sweep.seen(rank, symbol)) >= column) continue;
      const auto from = sweep.row(rank).begin() + place;
      if (is_forward(symbol) && peak({hole, from}, sweep.held_by(rank).live) >= cap) continue;
      next(rank, symbol) = column;
      std::iter_swap(hole, from);
      return;
    }
  };
  sweep.run(work, [&](int rank, int column) {
    const Symbol& symbol = sweep.row(rank).begin()[column];
    if (symbol == kBlank) fill(rank, column);
    if (symbol != kBlank) ++sweep.seen(rank, symbol);
  });
}

void pull_in(Timetable& timetable, int cap, Pull what, plan::Work& work) {
  const auto last_forward = std::ranges::count(timetable.front(), kF) - 1;
  bool in_warm_up = true, in_cool_down = false;
  Sweep sweep(timetable);
  Puller puller(sweep, cap, what == Pull::Passes);
  sweep.run(work, [&](int rank, int column) {
    const Symbol symbol = sweep.row(rank).begin()[column];
    if (symbol == kBlank || (is_weight(symbol) && what != Pull::Ends)) return;
    const int width = what == Pull::Whole && is_input(symbol) ? 2 : 1;
    const Op op{rank, column, width, symbol, sweep.seen(rank, symbol)++};
    in_warm_up = in_warm_up && (rank > 0 || symbol != kb);
    if (what == Pull::Whole || in_cool_down || (what == Pull::Ends && in_warm_up)) puller.pull(op);
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

void order_weights(TimetableRow& line) {
  std::size_t owner = 0;
  for (std::size_t cell = 0; cell < line.size(); ++cell) {
    if (!is_weight(line[cell])) continue;
    while (owner < cell && !is_input(line[owner])) ++owner;
    if (owner < cell) line[cell] = line[owner++] == kB ? kW : kw;
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
