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

  void add(Symbol symbol) { count(symbol, 1); }
  void take_back(Symbol symbol) { count(symbol, -1); }

  friend bool operator==(const Held&, const Held&) = default;

 private:
  void count(Symbol symbol, int sign) {
    live += sign * held(symbol);
    if (is_input(symbol)) pending += sign;
    if (is_weight(symbol)) pending -= sign;
  }
};

/// Columns from left to right, in each the ranks in turn, and what each rank holds and has run left
/// of the column that is visited.
class Sweep {
 public:
  Sweep(Timetable& timetable, int cap)
      : timetable_(timetable),
        cap_(cap),
        columns_(timetable),
        seen_(timetable.size()),
        held_(timetable.size()) {}

 protected:
  /// Calls `visit(rank, column)`, which may move symbols from this column and from the right.
  template <class Visit>
  void visit_all(plan::Work& work, Visit&& visit) {
    std::size_t longest = 0;
    for (const TimetableRow& line : timetable_) longest = std::max(longest, line.size());
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
  [[nodiscard]] int& seen(int rank, Symbol symbol) {
    return seen_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(symbol)];
  }

  Timetable& timetable_;
  int cap_;
  Columns columns_;

 private:
  std::vector<SymbolCount> seen_;
  std::vector<Held> held_;
};

class HoleFiller : Sweep {
 public:
  using Sweep::Sweep;

  void run(plan::Work& work) {
    visit_all(work, [&](int rank, int column) {
      Symbol& symbol = row(rank)[static_cast<std::size_t>(column)];
      if (symbol == kBlank) fill(rank, column);
      if (symbol != kBlank) ++seen(rank, symbol);
    });
  }

 private:
  /// The next of each symbol to the right, nearest first; the first that may comes.
  void fill(int rank, int column) {
    TimetableRow& line = row(rank);
    int now = held_by(rank).live, most = now;
    auto cell = static_cast<std::size_t>(column) + 1;  // first one not counted in `now`
    for (const auto& [place, symbol] : next_of_each(rank)) {
      if (place == Columns::kNone) return;
      if (columns_.needed(rank, symbol, seen(rank, symbol)) >= column) continue;
      const auto from = static_cast<std::size_t>(place);
      for (; is_forward(symbol) && cell < from; ++cell)
        most = std::max(most, now += held(line[cell]));
      if (is_forward(symbol) && most >= cap_) continue;
      columns_.set(rank, symbol, seen(rank, symbol), column);
      std::swap(line[static_cast<std::size_t>(column)], line[from]);
      return;
    }
  }

  using Next = std::pair<int, Symbol>;  // column, symbol

  [[nodiscard]] std::array<Next, kOwed> next_of_each(int rank) {
    std::array<Next, kOwed> next;
    for (std::size_t i = 0; i < next.size(); ++i) {
      const auto symbol = static_cast<Symbol>(i);
      next[i] = {columns_.at(rank, symbol, seen(rank, symbol)), symbol};
    }
    std::sort(next.begin(), next.end());
    return next;
  }
};

class PullIn : Sweep {
 public:
  PullIn(Timetable& timetable, int cap, Pull what)
      : Sweep(timetable, cap),
        what_(what),
        last_forward_(count(timetable.front())[kF] - 1),
        backwards_(timetable.size()) {}

  void run(plan::Work& work) {
    visit_all(work, [&](int rank, int column) { visit(rank, column); });
  }

 private:
  enum class Phase { WarmUp, Steady, CoolDown };

  /// A symbol, with what stands behind it and goes with it.
  struct Op {
    int rank, column, width;
    Symbol symbol;
    int index;

    [[nodiscard]] bool covers(int cell, int at) const { return cell >= at && cell < at + width; }
  };

  [[nodiscard]] bool is_given() const { return what_ == Pull::Passes; }

  void visit(int rank, int column) {
    const Symbol symbol = row(rank)[static_cast<std::size_t>(column)];
    if (symbol == kBlank || (is_weight(symbol) && what_ != Pull::Ends)) return;
    const int width = what_ == Pull::Whole && is_input(symbol) ? 2 : 1;
    const Op op{rank, column, width, symbol, seen(rank, symbol)++};
    if (phase_ == Phase::WarmUp && rank == 0 && symbol == kb) phase_ = Phase::Steady;
    const int at = is_moved() ? pull(op) : column;
    if (phase_ == Phase::Steady && symbol == kF && op.index == last_forward_)
      phase_ = Phase::CoolDown;
    if (!is_input(symbol)) return;
    std::vector<int>& sorted = backwards_[static_cast<std::size_t>(rank)];
    sorted.insert(std::lower_bound(sorted.begin(), sorted.end(), at), at);
  }

  [[nodiscard]] bool is_moved() const {
    return what_ == Pull::Whole || phase_ == Phase::CoolDown ||
           (what_ == Pull::Ends && phase_ == Phase::WarmUp);
  }

  /// First column after the op's data and after the one of its kind before it.
  [[nodiscard]] int earliest(const Op& op) const {
    int ready = 0;
    const int needed =
        op.symbol == kOwed
            ? backwards_[static_cast<std::size_t>(op.rank)][static_cast<std::size_t>(op.index)]
            : columns_.needed(op.rank, op.symbol, op.index);
    // What it needs is as wide as itself, except that the first backward follows a forward.
    const bool after_forward = op.symbol == kB && op.rank == 0;
    if (needed >= 0) ready = needed + (after_forward ? 1 : op.width);
    if (op.index == 0) return ready;
    return std::max(ready, columns_.at(op.rank, op.symbol, op.index - 1) + op.width);
  }

  /// Moves the op if it can be; where it stands then.
  int pull(const Op& op) {
    const int ready = earliest(op);
    walk_back(op, ready);
    for (int target = ready; target < op.column; ++target) {
      const Held& held = before_[static_cast<std::size_t>(target - ready)];
      if (!is_free(op, target) || !try_at(op, target, held)) continue;
      TimetableRow& line = row(op.rank);
      const auto first = static_cast<std::size_t>(target);
      line.resize(std::max(line.size(), first + changed_.size()), kBlank);
      std::ranges::copy(changed_, line.begin() + target);
      columns_.set(op.rank, op.symbol, op.index, target);
      held_by(op.rank) = held_at_column_;
      return target;
    }
    return op.column;
  }

  /// What the rank holds before every column from `ready` to the op's.
  void walk_back(const Op& op, int ready) {
    if (ready >= op.column) return;
    before_.resize(static_cast<std::size_t>(op.column - ready) + 1);
    before_.back() = held_by(op.rank);
    for (std::size_t i = before_.size() - 1; i-- > 0;) {
      before_[i] = before_[i + 1];
      before_[i].take_back(row(op.rank)[static_cast<std::size_t>(ready) + i]);
    }
  }

  [[nodiscard]] bool is_free(const Op& op, int target) {
    for (int cell = target; cell < target + op.width; ++cell) {
      const Symbol symbol = row(op.rank)[static_cast<std::size_t>(cell)];
      const bool gives_way = symbol == kBlank || (is_given() && is_weight(symbol));
      if (cell != op.column && !gives_way) return false;
    }
    return true;
  }

  /// Writes the cells from `target` on, before which the rank holds `held`, as they are with the op
  /// there, as far as they change. False when the rank exceeds the cap.
  bool try_at(const Op& op, int target, Held held) {
    const TimetableRow& line = row(op.rank);
    const int size = static_cast<int>(line.size());
    Held now = held;  // with the op where it is
    changed_.clear();
    for (int cell = target; cell < size || (is_given() && held.pending > 0); ++cell) {
      const auto at = static_cast<std::size_t>(cell);
      const Symbol old = cell < size ? line[at] : kBlank;
      Symbol symbol = op.covers(cell, op.column) ? kBlank : old;
      if (op.covers(cell, target)) symbol = line[at + static_cast<std::size_t>(op.column - target)];
      if (is_given() && !is_pass(symbol)) symbol = held.pending > 0 ? kOwed : kBlank;
      if (cell == op.column) held_at_column_ = held;
      now.add(old);
      held.add(symbol);
      if (held.live > cap_) return false;
      changed_.push_back(symbol);
      if (cell >= op.column && now == held) break;
    }
    return true;
  }

  static bool is_pass(Symbol symbol) { return is_forward(symbol) || is_input(symbol); }

  Pull what_;
  Phase phase_ = Phase::WarmUp;
  int last_forward_;
  std::vector<std::vector<int>> backwards_;  // by rank: columns of those that were visited
  std::vector<Held> before_;                 // from the first column where the op may stand on
  TimetableRow changed_;
  Held held_at_column_;
};

}  // namespace

void fill_holes(Timetable& timetable, int cap, plan::Work& work) {
  HoleFiller(timetable, cap).run(work);
}

void pull_in(Timetable& timetable, int cap, Pull what, plan::Work& work) {
  PullIn(timetable, cap, what).run(work);
}

void give_weights(Timetable& timetable) {
  for (TimetableRow& line : timetable) {
    Held held;
    for (std::size_t cell = 0; cell < line.size() || held.pending > 0; ++cell) {
      if (cell == line.size()) line.push_back(kBlank);
      if (line[cell] == kBlank || line[cell] == kOwed)
        line[cell] = held.pending > 0 ? kOwed : kBlank;
      held.add(line[cell]);
    }
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

void name_weights(TimetableRow& line) {
  std::array<int, 2> owed{};  // by backwards of chunk 0 and 1
  for (std::size_t cell = 0; cell < line.size() || owed[0] + owed[1] > 0; ++cell) {
    if (cell == line.size()) line.push_back(kBlank);
    Symbol& symbol = line[cell];
    if (is_input(symbol)) ++owed[symbol == kB ? 1 : 0];
    if (symbol != kBlank && symbol != kOwed) continue;
    const std::size_t chunk = owed[1] > 0 ? 1 : 0;
    symbol = owed[chunk] == 0 ? kBlank : chunk == 1 ? kW : kw;
    if (symbol != kBlank) --owed[chunk];
  }
}

}  // namespace millrace::generators
