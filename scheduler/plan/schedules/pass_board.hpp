// PassBoard: the ranks of a pipeline while what they run next is being decided, op by op: when each
// is free, what it holds, what it owes. The state under the list policies that go over the ranks in
// turn (zb-auto, zb-v-auto) and under the run of a timetable, whose decisions are already made.
#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "plan/schedules/timetable.hpp"

namespace millrace::generators {

/// What one rank's forwards, input halves and weight halves take and hold, and what it may hold.
struct RankCosts {
  std::array<double, 3> by_ticks{}, by_memory{};
  double limit = std::numeric_limits<double>::infinity();

  [[nodiscard]] double ticks(Symbol symbol) const { return by_ticks[kind(symbol)]; }
  [[nodiscard]] double memory(Symbol symbol) const { return by_memory[kind(symbol)]; }

  static constexpr std::size_t kind(Symbol symbol) {
    return is_forward(symbol) ? 0 : is_input(symbol) ? 1 : 2;
  }
};

/// Every symbol of a rank runs in the order of the micro-batches; kOwed is the weight half of the
/// oldest backward that owes one. A straight pipeline has chunk 0 alone: kF, kb and kOwed.
/// Thread-safety: externally synchronised.
class PassBoard {
 public:
  struct RankState {
    SymbolCount count{};
    int owed = 0;  ///< backwards whose weight half has not run
    double clock = 0, memory = 0;
    double bubble = 0;  ///< waits after the first forward
    TimetableRow row;
  };

  /// `costs` has an entry per rank and must outlive the board. `passes` are those that will run.
  PassBoard(std::span<const RankCosts> costs,
            double latency,
            int micro_batches,
            std::initializer_list<Symbol> passes)
      : costs_(costs),
        latency_(latency),
        number_(static_cast<int>(costs.size())),
        ranks_(costs.size()) {
    for (const Symbol pass : passes)
      ends_[static_cast<std::size_t>(pass)].resize(costs.size() *
                                                   static_cast<std::size_t>(micro_batches));
  }

  [[nodiscard]] int ranks() const { return number_; }
  [[nodiscard]] const RankState& at(int rank) const {
    return ranks_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] const RankCosts& cost(int rank) const {
    return costs_[static_cast<std::size_t>(rank)];
  }
  /// The largest bubble of a rank; bubbles never shrink.
  [[nodiscard]] double most_bubble() const { return most_bubble_; }
  [[nodiscard]] double end(int rank, Symbol pass, int micro_batch) const {
    return ends_[static_cast<std::size_t>(pass)][cell(rank, micro_batch)];
  }

  /// Whether what the rank's next op of this symbol needs has run.
  [[nodiscard]] bool is_fed(int rank, Symbol symbol) const {
    const int next = count(rank, symbol), from = feeder(rank, symbol, ranks());
    if (from >= 0) return count(from, symbol) > next;
    const Symbol before = local_predecessor(symbol);
    return before == kBlank || count(rank, before) > next;
  }

  /// When the neighbour's result for it arrives; 0 where there is no neighbour or it has not run.
  [[nodiscard]] double arrival(int rank, Symbol symbol) const {
    const int from = feeder(rank, symbol, ranks());
    return from < 0 ? 0 : end(from, symbol, count(rank, symbol)) + latency_;
  }

  /// Runs the rank's next op of this symbol as early as the rank and the neighbour allow. Returns
  /// its start.
  double run(int rank, Symbol symbol) {
    RankState& state = ranks_[static_cast<std::size_t>(rank)];
    const auto column = static_cast<std::size_t>(symbol);
    const RankCosts& own = cost(rank);
    const double without_wait = state.clock + own.ticks(symbol);
    double start = state.clock;
    if (is_weight(symbol)) {
      state.clock = without_wait;
      --state.owed;
    } else {
      if (is_input(symbol)) ++state.owed;
      start = std::max(start, arrival(rank, symbol));
      state.clock = start + own.ticks(symbol);
      ends_[column][cell(rank, state.count[column])] = state.clock;
      if (state.count[kF] > 0 && state.clock > without_wait) {
        state.bubble += state.clock - without_wait;
        most_bubble_ = std::max(most_bubble_, state.bubble);
      }
    }
    state.memory += own.memory(symbol);
    ++state.count[column];
    return start;
  }

  /// As run(), and notes the op in the rank's row.
  void place(int rank, Symbol symbol) {
    run(rank, symbol);
    ranks_[static_cast<std::size_t>(rank)].row.push_back(symbol);
  }

  /// Weight rule: uses the wait until `due` for owed weight halves; one more, that ends too late,
  /// where the rest of the wait is above `allowance`.
  void fill(int rank, double due, double allowance) {
    const RankState& state = at(rank);
    while (state.owed > 0 && state.clock + cost(rank).ticks(kOwed) <= due) place(rank, kOwed);
    if (state.owed > 0 && state.clock < due && due - state.clock > allowance) place(rank, kOwed);
  }

  /// Admission: runs owed weight halves until `change` fits under the limit; false when none is
  /// left.
  bool make_room(int rank, double change) {
    while (at(rank).memory + change > cost(rank).limit) {
      if (at(rank).owed == 0) return false;
      place(rank, kOwed);
    }
    return true;
  }

  /// Runs all weight halves that the rank owes.
  void settle(int rank) {
    while (at(rank).owed > 0) place(rank, kOwed);
  }

  void reserve(std::size_t ops) {
    for (RankState& state : ranks_) state.row.reserve(ops);
  }

  /// The rows, their weight halves named in the order of their backwards.
  [[nodiscard]] Timetable take() {
    Timetable rows;
    for (RankState& state : ranks_) {
      order_weights(state.row);
      rows.push_back(std::move(state.row));
    }
    return rows;
  }

 private:
  // Micro-batch major: a pass over the ranks walks neighbouring cells.
  [[nodiscard]] std::size_t cell(int rank, int micro_batch) const {
    return static_cast<std::size_t>(micro_batch) * static_cast<std::size_t>(number_) +
           static_cast<std::size_t>(rank);
  }
  [[nodiscard]] int count(int rank, Symbol symbol) const {
    return at(rank).count[static_cast<std::size_t>(symbol)];
  }

  std::span<const RankCosts> costs_;
  double latency_;
  int number_;  // of ranks: the size of ranks_ would be a division in every op
  double most_bubble_ = 0;
  std::vector<RankState> ranks_;
  std::array<std::vector<double>, kSymbols> ends_;  // by symbol: micro-batch, rank
};

}  // namespace millrace::generators
