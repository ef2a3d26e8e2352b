// ZBV auto (Qi et al. 2024 and the zero-bubble project): warm-up, fill of the V, then rounds of one
// backward and one forward per rank, with owed weight halves in the waits.
#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "plan/schedules/families.hpp"
#include "plan/schedules/pass_board.hpp"

namespace millrace::generators {

namespace {

/// The costs of a rank. A chunk is half a stage; doubling the latency instead keeps integers whole.
RankCosts chunk_costs(const Request& options) {
  const double passing = options.memory_limit ? passing_memory(options) / 2 : 0;
  return {.forward = {options.mean.forward, options.mean.memory_forward / 2},
          .input = {options.mean.input, options.mean.memory_input / 2},
          .weight = {options.mean.weight, options.mean.memory_weight / 2},
          .limit = memory_limit_of(options) - passing,
          .passing = passing};
}

/// What a run may do, and the bubbles that it may have.
struct VRules {
  bool fill_backward, fill_forward;  ///< a wait before it may be overfilled
  std::vector<double> approved;      ///< bubble by rank
};

class VHeuristic : PassBoard {
 public:
  VHeuristic(const Request& options, const std::vector<RankCosts>& costs, const VRules& rules)
      : PassBoard(costs, 2 * options.mean.latency, options.micro_batches, 2),
        rules_(rules),
        most_approved_(*std::ranges::max_element(rules.approved)) {}

  using PassBoard::most_bubble;
  using PassBoard::take;

  /// False when the limit leaves no way on.
  bool run(plan::Work& work) {
    for (int rank = 0; rank < ranks(); ++rank) place(rank, kF);
    warm_up();
    fill_the_vee();
    for (int round = 0; round < 2 * micro_batches(); ++round) {
      work.spend(3 * static_cast<std::size_t>(ranks()));
      if (!backwards() || !forwards()) return false;
    }
    for (int rank = 0; rank < ranks(); ++rank) settle(rank);
    return true;  // two backwards of every micro-batch on every rank
  }

  [[nodiscard]] std::vector<double> bubbles() const {
    std::vector<double> bubbles;
    for (int rank = 0; rank < ranks(); ++rank) bubbles.push_back(at(rank).bubble);
    return bubbles;
  }

 private:
  /// From the turn back to rank 0: more forwards while they fit before the first F1.
  void warm_up() {
    place(ranks() - 1, kf);
    for (int rank = ranks() - 2; rank >= 0; --rank) {
      const RankCosts& own = cost(rank);
      while (at(rank).memory + own.forward.memory * (2 + 2 * rank) <= own.limit &&
             at(rank).clock + own.forward.ticks <= arrival(rank, kf) && has_left(rank, kF))
        for (int above = 0; above <= rank; ++above) place(above, kF);
      place(rank, kf);
    }
  }

  /// Alternates F1 and F0 until every rank has as many forwards as the one before it.
  void fill_the_vee() {
    const auto forwards = [this](int rank) { return count(rank, kF) + count(rank, kf); };
    Symbol next = kF;
    for (int rank = 1; rank < ranks(); ++rank)
      while (forwards(rank) < forwards(rank - 1) ||
             (count(rank, kf) <= count(rank - 1, kf) && has_left(rank - 1, kf))) {
        for (int deeper = ranks() - 1; deeper >= rank; --deeper)
          if (has_left(deeper, next)) place(deeper, next);
        next = next == kF ? kf : kF;
      }
  }

  /// The backward of a rank in this round.
  [[nodiscard]] Symbol choose_backward(int rank) const {
    if (count(rank, kb) >= count(rank, kB)) return kB;
    return is_fed(rank, kb) || !has_left(rank, kB) ? kb : kB;
  }

  bool backwards() {
    chosen_.clear();
    for (int rank = 0; rank < ranks(); ++rank) chosen_.push_back(choose_backward(rank));
    const auto run_chosen = [this](int rank, Symbol pass, bool overfills) {
      return chosen_[static_cast<std::size_t>(rank)] != pass ||
             run_next(rank, pass, cost(rank).input.memory, overfills);
    };
    for (int rank = ranks() - 1; rank >= 0; --rank)
      if (!run_chosen(rank, kb, true)) return false;
    for (int rank = 0; rank < ranks(); ++rank)
      if (!run_chosen(rank, kB, rules_.fill_backward)) return false;
    return true;
  }

  bool forwards() {
    for (int rank = 0; rank < ranks(); ++rank) {
      if (!has_left(rank, kf)) continue;
      const bool is_due = count(rank, kf) < count(rank, kF);
      const Symbol pass = is_due && is_fed(rank, kf) ? kf : kF;
      if (is_due && !is_fed(rank, pass)) continue;
      if (!run_next(rank, pass, cost(rank).forward.memory, rules_.fill_forward)) return false;
    }
    return true;
  }

  bool run_next(int rank, Symbol pass, double change, bool overfills) {
    const double approved = most_approved_ - rules_.approved[static_cast<std::size_t>(rank)];
    return place_next(rank, pass, change, overfills ? slack(rank, approved) : plan::kNever);
  }

  VRules rules_;
  double most_approved_;
  std::vector<Symbol> chosen_;
};

}  // namespace

Program zb_v_auto(const Request& options) {
  const std::vector<RankCosts> costs(static_cast<std::size_t>(options.ranks), chunk_costs(options));
  plan::Work work(options.stop);
  std::optional<VHeuristic> best;
  for (const bool fill_backward : {true, false})
    for (const bool fill_forward : {true, false}) {
      VRules rules{fill_backward, fill_forward, std::vector<double>(costs.size(), -1)};
      double most_approved = std::numeric_limits<double>::infinity();
      while (true) {
        VHeuristic heuristic(options, costs, rules);
        if (!heuristic.run(work)) break;
        const double score = heuristic.most_bubble();
        const bool improves = score < most_approved;
        rules.approved = heuristic.bubbles();
        if (!best || score < best->most_bubble()) best.emplace(std::move(heuristic));
        if (!improves) break;
        most_approved = *std::ranges::max_element(rules.approved);
      }
    }
  require_order_found(best.has_value(), options);

  return timetable_program(best->take(), options.micro_batches, Placement::vee(options.ranks));
}

}  // namespace millrace::generators
