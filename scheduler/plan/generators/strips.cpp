// What every rewrite of strips needs: counts, peaks, positions, times, squeezing, hole filling.
#include "plan/generators/strips.hpp"

#include <algorithm>

namespace millrace::generators {

namespace {

bool moves_right(Symbol symbol) {
  return symbol == kF || symbol == kB;
}

/// The symbol that must have run before on the same rank, where no neighbour feeds it.
Symbol local_predecessor(Symbol symbol) {
  constexpr std::array<Symbol, kSymbols> before = {kBlank, kF, kf, kB, kB, kb};
  return before[static_cast<std::size_t>(symbol)];
}

/// The rank whose same symbol feeds this one; -1 when the need is local.
int feeder(int rank, Symbol symbol, int ranks) {
  if (is_weight(symbol)) return -1;
  const int from = moves_right(symbol) ? rank - 1 : rank + 1;
  return from < ranks ? from : -1;
}

double ticks(const StripCosts& costs, Symbol symbol) {
  return is_forward(symbol) ? costs.forward : is_weight(symbol) ? costs.weight : costs.input;
}

/// Runs the ranks in turn, each as far as its data allow.
class StripRun {
 public:
  StripRun(const std::vector<Strip>& strips, const StripCosts& costs)
      : strips_(strips),
        costs_(costs),
        next_(strips.size()),
        clock_(strips.size()),
        done_(strips.size()) {
    times_.start.resize(strips.size());
  }

  StripTimes run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (int rank = 0; rank < ranks(); ++rank) moved = advance(rank) || moved;
      for (int rank = ranks() - 1; rank >= 0; --rank) moved = advance(rank) || moved;
    }
    times_.complete = true;
    for (std::size_t rank = 0; rank < strips_.size(); ++rank) {
      times_.complete = times_.complete && next_[rank] == strips_[rank].size();
      if (!times_.start[rank].empty())
        times_.span = std::max(times_.span, clock_[rank] - times_.start[rank].front());
    }
    return std::move(times_);
  }

 private:
  [[nodiscard]] int ranks() const { return static_cast<int>(strips_.size()); }

  bool advance(int rank) {
    const auto row = static_cast<std::size_t>(rank);
    bool moved = false;
    for (; next_[row] < strips_[row].size(); ++next_[row], moved = true) {
      const Symbol symbol = strips_[row][next_[row]];
      if (symbol == kBlank) continue;
      const auto column = static_cast<std::size_t>(symbol);
      const std::size_t index = done_[row][column].size();
      const int from = feeder(rank, symbol, ranks());
      double start = clock_[row];
      if (from >= 0) {
        const auto& ends = done_[static_cast<std::size_t>(from)][column];
        if (index >= ends.size()) return moved;
        start = std::max(start, ends[index] + costs_.latency);
      } else if (const Symbol before = local_predecessor(symbol); before != kBlank) {
        if (index >= done_[row][static_cast<std::size_t>(before)].size()) return moved;
      }
      clock_[row] = start + ticks(costs_, symbol);
      done_[row][column].push_back(clock_[row]);
      times_.start[row].push_back(start);
    }
    return moved;
  }

  const std::vector<Strip>& strips_;
  StripCosts costs_;
  std::vector<std::size_t> next_;
  std::vector<double> clock_;
  std::vector<std::array<std::vector<double>, kSymbols>> done_;
  StripTimes times_;
};

}  // namespace

SymbolCount count(const Strip& strip) {
  SymbolCount counts{};
  for (const Symbol symbol : strip)
    if (symbol != kBlank) ++counts[static_cast<std::size_t>(symbol)];
  return counts;
}

int peak(const Strip& strip) {
  int now = 0, most = 0;
  for (const Symbol symbol : strip) most = std::max(most, now += held(symbol));
  return most;
}

int peak(const std::vector<Strip>& strips) {
  int most = 0;
  for (const Strip& strip : strips) most = std::max(most, peak(strip));
  return most;
}

Columns::Columns(const std::vector<Strip>& strips) : columns_(strips.size()) {
  for (std::size_t rank = 0; rank < strips.size(); ++rank)
    for (std::size_t column = 0; column < strips[rank].size(); ++column)
      if (const Symbol symbol = strips[rank][column]; symbol != kBlank)
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

StripTimes run_strips(const std::vector<Strip>& strips, const StripCosts& costs) {
  return StripRun(strips, costs).run();
}

bool squeeze(std::vector<Strip>& strips) {
  const StripTimes times = run_strips(strips, {});
  if (!times.complete) return false;
  for (std::size_t rank = 0; rank < strips.size(); ++rank) {
    const auto& start = times.start[rank];
    Strip squeezed(start.empty() ? 0 : static_cast<std::size_t>(start.back()) + 1, kBlank);
    std::size_t next = 0;
    for (const Symbol symbol : strips[rank])
      if (symbol != kBlank) squeezed[static_cast<std::size_t>(start[next++])] = symbol;
    strips[rank] = std::move(squeezed);
  }
  return true;
}

namespace {

class HoleFiller {
 public:
  HoleFiller(std::vector<Strip>& strips, int cap)
      : strips_(strips), cap_(cap), columns_(strips), seen_(strips.size()), live_(strips.size()) {}

  void run() {
    std::size_t longest = 0;
    for (const Strip& strip : strips_) longest = std::max(longest, strip.size());
    for (std::size_t column = 0; column < longest; ++column)
      for (std::size_t rank = 0; rank < strips_.size(); ++rank) {
        if (column >= strips_[rank].size()) continue;
        if (strips_[rank][column] == kBlank) fill(static_cast<int>(rank), column);
        const Symbol symbol = strips_[rank][column];
        if (symbol == kBlank) continue;
        ++seen_[rank][static_cast<std::size_t>(symbol)];
        live_[rank] += held(symbol);
      }
  }

 private:
  /// Looks right along the rank; only the first of each symbol may come.
  void fill(int rank, std::size_t column) {
    Strip& strip = strips_[static_cast<std::size_t>(rank)];
    std::array<bool, kSymbols> met{};
    int left = kSymbols, now = live_[static_cast<std::size_t>(rank)], most = now;
    for (std::size_t from = column + 1; from < strip.size() && left > 0; ++from) {
      const Symbol symbol = strip[from];
      if (symbol == kBlank) continue;
      if (auto& first = met[static_cast<std::size_t>(symbol)]; !first) {
        first = true;
        --left;
        if (may_move(rank, symbol, static_cast<int>(column), most)) {
          const int index = seen_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(symbol)];
          columns_.set(rank, symbol, index, static_cast<int>(column));
          std::swap(strip[column], strip[from]);
          return;
        }
      }
      most = std::max(most, now += held(symbol));
    }
  }

  [[nodiscard]] bool may_move(int rank, Symbol symbol, int column, int most) const {
    if (is_forward(symbol) && most >= cap_) return false;
    const int index = seen_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(symbol)];
    return columns_.needed(rank, symbol, index) < column;
  }

  std::vector<Strip>& strips_;
  int cap_;
  Columns columns_;
  std::vector<SymbolCount> seen_;
  std::vector<int> live_;
};

}  // namespace

void fill_holes(std::vector<Strip>& strips, int cap) {
  HoleFiller(strips, cap).run();
}

Program strips_program(const std::vector<Strip>& strips,
                       const ScheduleOptions& options,
                       bool fused) {
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
    for (const Symbol symbol : strips[static_cast<std::size_t>(rank)]) {
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
