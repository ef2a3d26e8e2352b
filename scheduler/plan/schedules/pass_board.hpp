// PassBoard: the ranks of a zigzag pipeline while what they run next is being decided, op by op:
// when each is free, what it holds, what it owes. The board under wave's list scheduling, under the
// policies that go over the ranks in turn (zb-auto, zb-v-auto), and under the run of a timetable,
// whose decisions are already made.
#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "plan/schedules/list_by_start.hpp"
#include "plan/schedules/timetable.hpp"

namespace millrace::generators {

/// What one rank's ops take and hold, and what the rank may hold.
struct RankCosts {
  struct Op {
    double ticks = 0, memory = 0;
  };

  Op forward, input, weight;
  double limit = std::numeric_limits<double>::infinity();
  double passing = 0;  ///< what the limit already leaves free for an F or I while it runs
};

/// A pass is one way of a micro-batch over all ranks: even ones go from rank 0 to the last, odd
/// ones back, first the forwards of all chunks, then their backwards. A straight pipeline is a V
/// without the two passes in its middle: kF and kb alone. Every rank runs a pass in the order of
/// the micro-batches, and weight halves in the order of the backwards that owe them. Thread-safety:
/// externally synchronised.
class PassBoard {
 public:
  struct RankState {
    int owed = 0;  ///< backwards whose weight half has not run
    double clock = 0, memory = 0;
    double bubble = 0;  ///< waits after the first forward
    TimetableRow row;
  };

  static constexpr int kNoRank = -1;

  /// `costs` has an entry per rank and must outlive the board.
  PassBoard(std::span<const RankCosts> costs, double latency, int micro_batches, int chunks)
      : costs_(costs),
        latency_(latency),
        number_(static_cast<int>(costs.size())),
        micro_batches_(micro_batches),
        passes_(std::max(4, 2 * chunks)),
        step_(chunks == 1 ? kb - kF : 1),
        ranks_(costs.size()),
        counts_(costs.size() * static_cast<std::size_t>(passes_)),
        ends_(static_cast<std::size_t>(passes_)) {
    for (int pass = 0; pass < passes_; ++pass)
      if (chunks > 1 || pass == kF || pass == kb)
        ends_[static_cast<std::size_t>(pass)].resize(cell(0, micro_batches));
  }

  [[nodiscard]] int ranks() const { return number_; }
  [[nodiscard]] int micro_batches() const { return micro_batches_; }
  [[nodiscard]] const RankState& at(int rank) const {
    return ranks_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] const RankCosts& cost(int rank) const {
    return costs_[static_cast<std::size_t>(rank)];
  }
  /// How often the rank has run a pass.
  [[nodiscard]] int count(int rank, int pass) const {
    return counts_[static_cast<std::size_t>(rank * passes_ + pass)];
  }
  [[nodiscard]] bool has_left(int rank, int pass) const {
    return count(rank, pass) < micro_batches_;
  }
  [[nodiscard]] double end(int rank, int pass, int micro_batch) const {
    return ends_[static_cast<std::size_t>(pass)][cell(rank, micro_batch)];
  }

  /// The rank that feeds this one in a pass, and the one that this one feeds; of the turns none.
  [[nodiscard]] int feeder(int rank, int pass) const { return beside(rank, pass % 2 ? 1 : -1); }
  [[nodiscard]] int fed(int rank, int pass) const { return beside(rank, pass % 2 ? -1 : 1); }

  /// Whether the rank has a next micro-batch in this pass, and what that needs has run.
  [[nodiscard]] bool is_fed(int rank, int pass) const {
    const int next = count(rank, pass), from = feeder(rank, pass);
    if (from != kNoRank) return count(from, pass) > next;
    return (pass >= step_ ? count(rank, pass - step_) : micro_batches_) > next;
  }

  /// When the neighbour's result for it arrives; 0 where there is no neighbour or it has not run.
  [[nodiscard]] double arrival(int rank, int pass) const {
    const int from = feeder(rank, pass);
    return from == kNoRank ? 0 : end(from, pass, count(rank, pass)) + latency_;
  }

  /// How much more bubble the rank may have without being the worst, or worse than `approved`.
  [[nodiscard]] double slack(int rank, double approved = 0) const {
    return std::max(most_bubble_, approved) - at(rank).bubble;
  }

  /// The largest bubble of a rank; bubbles never shrink.
  [[nodiscard]] double most_bubble() const { return most_bubble_; }

  /// Runs the rank's next micro-batch of a pass as early as the rank and the neighbour allow.
  /// Returns its start.
  double run(int rank, int pass) {
    RankState& state = ranks_[static_cast<std::size_t>(rank)];
    const bool is_forward = 2 * pass < passes_;
    const RankCosts::Op& op = is_forward ? cost(rank).forward : cost(rank).input;
    const double start = std::max(state.clock, arrival(rank, pass));
    const double end = start + op.ticks, without_wait = state.clock + op.ticks;
    if (end > without_wait && count(rank, kF) > 0) {
      state.bubble += end - without_wait;
      most_bubble_ = std::max(most_bubble_, state.bubble);
    }
    ends_[static_cast<std::size_t>(pass)][cell(rank, count(rank, pass))] = end;
    ++counts_[static_cast<std::size_t>(rank * passes_ + pass)];
    state.clock = end;
    state.memory += op.memory;
    if (!is_forward) ++state.owed;
    return start;
  }

  /// Runs the rank's oldest owed weight half. Returns its start.
  double run_weight(int rank) {
    RankState& state = ranks_[static_cast<std::size_t>(rank)];
    const double start = state.clock;
    state.clock += cost(rank).weight.ticks;
    state.memory += cost(rank).weight.memory;
    --state.owed;
    return start;
  }

  /// As run() and run_weight() (kOwed), and notes the op in the rank's row.
  void place(int rank, Symbol symbol) {
    ranks_[static_cast<std::size_t>(rank)].row.push_back(symbol);
    if (symbol == kOwed)
      run_weight(rank);
    else
      run(rank, symbol);
  }

  /// As place(), where the pass is fed and the rank has room: owed weight halves run before it
  /// until `change` fits under the limit (admission), and while it waits for its data; one more,
  /// that ends too late, where the rest of the wait is above `allowance` (weight rule). False: it
  /// cannot run.
  bool place_next(int rank, Symbol pass, double change, double allowance) {
    const RankState& state = at(rank);
    const RankCosts& own = cost(rank);
    if (!is_fed(rank, pass)) return false;
    for (; state.memory + change > own.limit; place(rank, kOwed))
      if (state.owed == 0) return false;
    const double due = arrival(rank, pass), ticks = own.weight.ticks;
    while (state.owed > 0 && plan::takes_wait(state.clock, ticks, due, allowance))
      place(rank, kOwed);
    place(rank, pass);
    return true;
  }

  /// Runs all weight halves that the rank owes.
  void settle(int rank) {
    while (at(rank).owed > 0) place(rank, kOwed);
  }

  /// The rows of all ranks.
  [[nodiscard]] Timetable take() {
    Timetable rows;
    for (RankState& state : ranks_) rows.push_back(std::move(state.row));
    return rows;
  }

 private:
  [[nodiscard]] int beside(int rank, int step) const {
    return rank + step < number_ ? rank + step : kNoRank;
  }
  // Micro-batch major: a pass over the ranks walks neighbouring cells.
  [[nodiscard]] std::size_t cell(int rank, int micro_batch) const {
    return static_cast<std::size_t>(micro_batch) * static_cast<std::size_t>(number_) +
           static_cast<std::size_t>(rank);
  }

  std::span<const RankCosts> costs_;
  double latency_;
  int number_;  // of ranks: the size of ranks_ would be a division in every op
  int micro_batches_, passes_;
  int step_;  // from a pass to the one after its turn
  double most_bubble_ = 0;
  std::vector<RankState> ranks_;
  std::vector<int> counts_;                // by rank and pass
  std::vector<std::vector<double>> ends_;  // by pass: micro-batch, rank
};

}  // namespace millrace::generators
