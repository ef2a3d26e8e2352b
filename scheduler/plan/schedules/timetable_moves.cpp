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

/// What a cell that no pass stands in is given.
Symbol gift(const Held& held) {
  return held.pending > 0 ? kOwed : kBlank;
}

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
    const bool matters = is_forward(op.symbol) || is_given();  // all else only frees memory earlier
    if (matters) walk_back(op, ready);
    for (int target = ready; target < op.column; ++target) {
      if (!is_free(op, target)) continue;
      if (matters && !fits(op, target, before_[static_cast<std::size_t>(target - ready)])) continue;
      move(op, target);
      if (is_given())
        give(op, target, before_[static_cast<std::size_t>(target - ready)]);
      else
        for (int cell = target; cell < std::min(target + op.width, op.column); ++cell)
          held_by(op.rank).add(row(op.rank)[static_cast<std::size_t>(cell)]);
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

  /// Whether the rank stays within the cap with the op at `target`, before which it holds `held`.
  [[nodiscard]] bool fits(const Op& op, int target, const Held& held) {
    const TimetableRow& line = row(op.rank);
    Held now = held, then = held;  // as it is, and with the op moved
    for (int cell = target; cell < static_cast<int>(line.size()); ++cell) {
      const Symbol symbol = line[static_cast<std::size_t>(cell)];
      now.add(symbol);
      if (op.covers(cell, target))
        then.add(line[static_cast<std::size_t>(op.column + cell - target)]);
      else if (is_given() && (op.covers(cell, op.column) || !is_pass(symbol)))
        then.add(gift(then));
      else if (!op.covers(cell, op.column))
        then.add(symbol);
      if (then.live > cap_) return false;
      if (cell >= op.column && now == then) return true;
    }
    return true;
  }

  void move(const Op& op, int target) {
    TimetableRow& line = row(op.rank);
    for (int cell = 0; cell < op.width; ++cell)
      line[static_cast<std::size_t>(target + cell)] =
          std::exchange(line[static_cast<std::size_t>(op.column + cell)], kBlank);
    columns_.set(op.rank, op.symbol, op.index, target);
  }

  /// Gives weight halves anew from `target` on, before which the rank holds `held`.
  void give(const Op& op, int target, Held held) {
    TimetableRow& line = row(op.rank);
    for (auto cell = static_cast<std::size_t>(target); cell < line.size() || held.pending > 0;
         ++cell) {
      if (cell == static_cast<std::size_t>(op.column)) held_by(op.rank) = held;
      if (cell == line.size()) line.push_back(kBlank);
      if (!is_pass(line[cell])) line[cell] = gift(held);
      held.add(line[cell]);
    }
  }

  static bool is_pass(Symbol symbol) { return is_forward(symbol) || is_input(symbol); }

  Pull what_;
  Phase phase_ = Phase::WarmUp;
  int last_forward_;
  std::vector<std::vector<int>> backwards_;  // by rank: columns of those that were visited
  std::vector<Held> before_;
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
      if (line[cell] == kBlank || line[cell] == kOwed) line[cell] = gift(held);
      held.add(line[cell]);
    }
  }
}

void name_weights(Timetable& timetable) {
  for (TimetableRow& line : timetable) {
    int second = 0, first = 0;  // backwards of chunk 1 and 0 that owe theirs
    for (std::size_t cell = 0; cell < line.size() || second + first > 0; ++cell) {
      if (cell == line.size()) line.push_back(kBlank);
      Symbol& symbol = line[cell];
      if (symbol == kB) ++second;
      if (symbol == kb) ++first;
      if (symbol != kBlank && symbol != kOwed) continue;
      symbol = second > 0 ? kW : first > 0 ? kw : kBlank;
      if (symbol != kBlank) --(symbol == kW ? second : first);
    }
  }
}

}  // namespace millrace::generators
