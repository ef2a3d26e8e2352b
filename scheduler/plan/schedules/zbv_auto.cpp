// ZBV auto (Qi et al. 2024 and the zero-bubble project): warm-up, fill of the V, then rounds of one
// backward and one forward per rank, with owed weight halves in the waits.
#include "plan/schedules/zbv_auto.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "plan/schedules/options.hpp"
#include "plan/schedules/pass_board.hpp"

namespace millrace::generators {

namespace {

/// The costs of a rank. A chunk is half a stage; doubling the latency instead keeps integers whole.
RankCosts chunk_costs(const ScheduleOptions& options) {
  return {{options.forward, options.input, options.weight},
          {options.memory_forward / 2, options.memory_input / 2, options.memory_weight / 2},
          memory_limit_of(options)};
}

/// What a run may do, and the bubbles that it may have.
struct Rules {
  bool fill_backward, fill_forward;  ///< a wait before it may be overfilled
  std::vector<double> approved;      ///< bubble by rank
};

class Heuristic {
 public:
  Heuristic(const ScheduleOptions& options, const std::vector<RankCosts>& costs, const Rules& rules)
      : ranks_(options.ranks),
        micro_batches_(options.micro_batches),
        latency_(2 * options.latency),
        rules_(rules),
        most_approved_(*std::ranges::max_element(rules.approved)),
        board_(costs, latency_, options.micro_batches, {kF, kf, kB, kb}) {}

  /// False when the limit leaves no way on.
  bool run(plan::Work& work) {
    for (int rank = 0; rank < ranks_; ++rank) place(kF, rank);
    warm_up();
    fill_the_vee();
    for (int round = 0; round < 2 * micro_batches_; ++round) {
      work.spend(3 * static_cast<std::size_t>(ranks_));
      if (!backwards() || !forwards()) return false;
    }
    for (int rank = 0; rank < ranks_; ++rank) board_.settle(rank);
    return is_complete();
  }

  [[nodiscard]] double score() const { return board_.most_bubble(); }

  [[nodiscard]] std::vector<double> bubbles() const {
    std::vector<double> bubbles;
    for (int rank = 0; rank < ranks_; ++rank) bubbles.push_back(at(rank).bubble);
    return bubbles;
  }

  [[nodiscard]] Timetable take() { return board_.take(); }

 private:
  [[nodiscard]] const PassBoard::RankState& at(int rank) const { return board_.at(rank); }
  [[nodiscard]] const RankCosts& cost(int rank) const { return board_.cost(rank); }
  [[nodiscard]] bool is_fed(Symbol pass, int rank) const { return board_.is_fed(rank, pass); }
  void place(Symbol pass, int rank) { board_.place(rank, pass); }
  bool make_room(int rank, double change) { return board_.make_room(rank, change); }

  /// How much more bubble this rank may have without being the worst.
  [[nodiscard]] double slack(int rank) const {
    const double approved = most_approved_ - rules_.approved[static_cast<std::size_t>(rank)];
    return std::max(board_.most_bubble(), approved) - at(rank).bubble;
  }

  /// Uses the wait for the op's data; with `overshoot` also when a weight half ends too late.
  void prepare(Symbol pass, int rank, bool overshoot) {
    const double none = std::numeric_limits<double>::infinity();
    board_.fill(rank, board_.arrival(rank, pass), overshoot ? slack(rank) : none);
  }

  /// From the turn back to rank 0: more forwards while they fit before the first F1.
  void warm_up() {
    for (int rank = ranks_ - 1; rank >= 0; --rank) {
      const PassBoard::RankState& state = at(rank);
      if (rank + 1 < ranks_) {
        const double due = board_.end(rank + 1, kf, 0) + latency_;
        while (state.memory + cost(rank).memory(kF) * (2 + 2 * rank) <= cost(rank).limit &&
               state.clock + cost(rank).ticks(kF) <= due && state.count[kF] < micro_batches_)
          for (int below = 0; below <= rank; ++below) place(kF, below);
      }
      place(kf, rank);
    }
  }

  /// Alternates F1 and F0 until every rank has as many forwards as the one before it.
  void fill_the_vee() {
    Symbol next = kF;
    for (int rank = 1; rank < ranks_; ++rank) {
      const PassBoard::RankState &state = at(rank), &before = at(rank - 1);
      while (state.count[kF] + state.count[kf] < before.count[kF] + before.count[kf] ||
             (state.count[kf] <= before.count[kf] && before.count[kf] < micro_batches_)) {
        for (int deeper = ranks_ - 1; deeper >= rank; --deeper)
          if (at(deeper).count[next] < micro_batches_) place(next, deeper);
        next = next == kF ? kf : kF;
      }
    }
  }

  /// The backward of a rank in this round.
  [[nodiscard]] Symbol choose_backward(int rank) const {
    const PassBoard::RankState& state = at(rank);
    if (state.count[kb] >= state.count[kB]) return kB;
    const bool is_due = rank + 1 == ranks_ || is_fed(kb, rank);
    return is_due || state.count[kB] >= micro_batches_ ? kb : kB;
  }

  bool backwards() {
    for (int rank = 0; rank < ranks_; ++rank)
      if (!make_room(rank, cost(rank).memory(kb))) return false;
    chosen_.clear();
    for (int rank = 0; rank < ranks_; ++rank) chosen_.push_back(choose_backward(rank));
    for (int rank = ranks_ - 1; rank >= 0; --rank)
      if (chosen_[static_cast<std::size_t>(rank)] == kb && !run_backward(kb, rank, true))
        return false;
    for (int rank = 0; rank < ranks_; ++rank)
      if (chosen_[static_cast<std::size_t>(rank)] == kB &&
          !run_backward(kB, rank, rules_.fill_backward))
        return false;
    return true;
  }

  bool run_backward(Symbol kind, int rank, bool overshoot) {
    if (at(rank).count[kind] == micro_batches_ || !is_fed(kind, rank)) return false;
    prepare(kind, rank, overshoot);
    place(kind, rank);
    return true;
  }

  bool forwards() {
    for (int rank = 0; rank < ranks_; ++rank) {
      const PassBoard::RankState& state = at(rank);
      if (state.count[kf] >= micro_batches_) continue;
      Symbol kind = kF;
      if (state.count[kf] < state.count[kF]) {
        if (rank + 1 == ranks_ || is_fed(kf, rank))
          kind = kf;
        else if (state.count[kF] >= micro_batches_ || !is_fed(kF, rank))
          continue;
      }
      if (!is_fed(kind, rank) || !make_room(rank, cost(rank).memory(kF))) return false;
      prepare(kind, rank, rules_.fill_forward);
      place(kind, rank);
    }
    return true;
  }

  [[nodiscard]] bool is_complete() const {
    for (int rank = 0; rank < ranks_; ++rank)
      for (const Symbol pass : {kF, kf, kB, kb})
        if (at(rank).count[pass] != micro_batches_) return false;
    return true;
  }

  int ranks_, micro_batches_;
  double latency_;
  Rules rules_;
  double most_approved_;
  PassBoard board_;
  std::vector<Symbol> chosen_;
};

}  // namespace

Program zb_v_auto(const ScheduleOptions& options) {
  const std::vector<RankCosts> costs(static_cast<std::size_t>(options.ranks), chunk_costs(options));
  plan::Work work(options.stop);
  std::optional<Heuristic> best;
  for (const bool fill_backward : {true, false})
    for (const bool fill_forward : {true, false}) {
      Rules rules{fill_backward, fill_forward, std::vector<double>(costs.size(), -1)};
      double most_approved = std::numeric_limits<double>::infinity();
      while (true) {
        Heuristic heuristic(options, costs, rules);
        if (!heuristic.run(work)) break;
        const double score = heuristic.score();
        const bool improves = score < most_approved;
        rules.approved = heuristic.bubbles();
        if (!best || score < best->score()) best.emplace(std::move(heuristic));
        if (!improves) break;
        most_approved = *std::ranges::max_element(rules.approved);
      }
    }
  require_order_found(best.has_value(), options);

  return timetable_program(best->take(), options.micro_batches, Placement::vee(options.ranks));
}

}  // namespace millrace::generators
