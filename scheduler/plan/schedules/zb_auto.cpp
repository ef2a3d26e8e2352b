// ZB auto (Qi et al. 2023, section 3 and the zero-bubble project): decide forward by forward and
// backward by backward, fill every wait with owed weight halves, keep within the memory limit.
#include "plan/schedules/zb_auto.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <vector>

#include "plan/schedules/options.hpp"
#include "plan/schedules/pass_board.hpp"
#include "plan/text/number_text.hpp"

namespace millrace::generators {

namespace {

/// An F is admitted only where the I that follows it fits as well: an I that keeps more for W than
/// it frees would find no room later.
double growth(const RankCosts& costs) {
  return std::max(0.0, costs.memory(kb));
}
double admission(const RankCosts& costs) {
  return costs.memory(kF) + growth(costs);
}

/// The three rules that a run may follow or not.
struct Rules {
  bool bubble_in_warm_up;  ///< the warm-up may leave a bubble rather than delay the first backward
  bool backward_first;     ///< a backward may come before an early forward
  bool greedy;             ///< a started wait is always filled
};

class Heuristic {
 public:
  Heuristic(int micro_batches, const std::vector<RankCosts>& costs, double latency, Rules rules)
      : ranks_(static_cast<int>(costs.size())),
        micro_batches_(micro_batches),
        latency_(latency),
        rules_(rules),
        board_(costs, latency, micro_batches, {kF, kb}) {
    board_.reserve(3 * static_cast<std::size_t>(micro_batches));
  }

  /// False when the limit leaves no way on.
  bool run(plan::Work& work) {
    if (!warm_up()) return false;
    for (int micro_batch = 1; micro_batch < micro_batches_; ++micro_batch) {
      work.spend(3 * static_cast<std::size_t>(ranks_));
      if (!steady(micro_batch)) return false;
    }
    for (int rank = 0; rank < ranks_; ++rank) board_.settle(rank);
    return true;
  }

  /// Longest time from a rank's first start to its last end.
  [[nodiscard]] double span() const {
    double longest = 0;
    for (int rank = 0; rank < ranks_; ++rank)
      longest = std::max(longest, at(rank).clock - board_.end(rank, kF, 0) + cost(rank).ticks(kF));
    return longest;
  }

  [[nodiscard]] Timetable take() { return board_.take(); }

 private:
  [[nodiscard]] const PassBoard::RankState& at(int rank) const { return board_.at(rank); }
  [[nodiscard]] const RankCosts& cost(int rank) const { return board_.cost(rank); }
  [[nodiscard]] bool has_forwards_left(int rank) const {
    return at(rank).count[kF] < micro_batches_;
  }

  /// How much of a wait the rank may leave empty.
  [[nodiscard]] double allowance(int rank) const { return rules_.greedy ? 0 : slack(rank); }
  /// How much more bubble the rank may have without being the worst.
  [[nodiscard]] double slack(int rank) const { return board_.most_bubble() - at(rank).bubble; }

  /// First forwards, extra forwards, first backwards.
  bool warm_up() {
    for (int rank = 0; rank < ranks_; ++rank) {
      if (at(rank).memory + admission(cost(rank)) > cost(rank).limit) return false;
      board_.place(rank, kF);
    }
    const std::vector<int> extra = extra_forwards();
    for (int rank = 0; rank < ranks_; ++rank)
      for (int index = 0; index < extra[static_cast<std::size_t>(rank)]; ++index)
        board_.place(rank, kF);
    for (int rank = ranks_ - 1; rank >= 0; --rank) board_.place(rank, kb);
    return true;
  }

  /// How many more forwards each rank runs before its first backward arrives.
  std::vector<int> extra_forwards() {
    std::vector<int> extra(static_cast<std::size_t>(ranks_));
    double last = board_.end(ranks_ - 1, kF, 0) + cost(ranks_ - 1).ticks(kb);
    for (int rank = ranks_ - 2; rank >= 0; --rank) {
      const PassBoard::RankState& state = at(rank);
      const RankCosts& own = cost(rank);
      int& count = extra[static_cast<std::size_t>(rank)];
      double clock = state.clock, memory = state.memory;
      const double due = last + latency_;
      while (state.count[kF] + count < micro_batches_ && memory + admission(own) <= own.limit) {
        if (rules_.bubble_in_warm_up ? clock + own.ticks(kF) > due : clock >= due) break;
        clock += own.ticks(kF);
        memory += own.memory(kF);
        ++count;
      }
      last = std::max(clock, due) + own.ticks(kb);
    }
    for (std::size_t rank = 1; rank < extra.size(); ++rank) {
      // Never more than the rank before it sends (ranks may differ), and one fewer where it may.
      extra[rank] = std::min(extra[rank], extra[rank - 1]);
      while (extra[rank] > 0 && extra[rank] >= extra[rank - 1] && 1 + extra[rank] < micro_batches_)
        --extra[rank];
    }
    return extra;
  }

  /// Whether the rank should run a forward before its next backward.
  [[nodiscard]] bool wants_forward(int rank) const {
    const PassBoard::RankState& state = at(rank);
    if (!rules_.backward_first || rank + 1 >= ranks_) return true;
    const PassBoard::RankState& next = at(rank + 1);
    if (state.count[kF] < next.count[kF] + 2) return true;

    const RankCosts& cost_of_next = cost(rank + 1);
    const double due = next.clock + cost_of_next.ticks(kF) + cost_of_next.ticks(kb) + latency_;
    if (state.clock >= due) return false;
    if (state.clock + cost(rank).ticks(kF) + room_ticks(rank) <= due) return true;
    return due - state.clock > slack(rank);
  }

  /// Time of the weight halves that must run before one more forward fits.
  [[nodiscard]] double room_ticks(int rank) const {
    const RankCosts& own = cost(rank);
    double memory = at(rank).memory, ticks = 0;
    for (int left = at(rank).owed; left > 0 && memory + admission(own) > own.limit; --left) {
      memory += own.memory(kOwed);
      ticks += own.ticks(kOwed);
    }
    return ticks;
  }

  /// Forwards that come first, then backward `micro_batch` from the last rank to the first.
  bool steady(int micro_batch) {
    std::vector<bool>& chosen = chosen_;
    chosen.assign(static_cast<std::size_t>(ranks_), true);
    for (int rank = 0; rank < ranks_; ++rank)
      if (has_forwards_left(rank)) chosen[static_cast<std::size_t>(rank)] = wants_forward(rank);
    for (std::size_t rank = chosen.size() - 1; rank-- > 0;)
      chosen[rank] = chosen[rank] && chosen[rank + 1];

    for (int rank = 0; rank < ranks_; ++rank) {
      if (!chosen[static_cast<std::size_t>(rank)]) continue;
      if (!has_forwards_left(rank)) continue;
      if (!board_.make_room(rank, admission(cost(rank)))) return false;
      if (rank > 0) board_.fill(rank, board_.arrival(rank, kF), allowance(rank));
      board_.place(rank, kF);
    }
    for (int rank = ranks_ - 1; rank >= 0; --rank) {
      if (!board_.make_room(rank, cost(rank).memory(kb))) return false;
      if (rank + 1 < ranks_) board_.fill(rank, board_.arrival(rank, kb), allowance(rank));
      if (rank == 0 && !has_forwards_left(rank)) board_.settle(rank);
      board_.place(rank, kb);
    }
    return at(0).count[kb] == micro_batch + 1;
  }

  int ranks_, micro_batches_;
  double latency_;
  Rules rules_;
  PassBoard board_;
  std::vector<bool> chosen_;
};

/// The costs of every rank, from the stages' own where they are given. Without a limit a rank may
/// hold p micro-batches of its own stage.
std::vector<RankCosts> rank_costs(const ScheduleOptions& options) {
  RankCosts mean{{options.forward, options.input, options.weight},
                 {options.memory_forward, options.memory_input, options.memory_weight}};
  mean.limit = memory_limit_of(options) + (options.memory_limit ? 0 : growth(mean));
  std::vector<RankCosts> costs(static_cast<std::size_t>(options.ranks), mean);
  if (!options.stage_costs) return costs;
  const Cost& cost = *options.stage_costs;
  cost.require_fits({.ranks = options.ranks,
                     .micro_batches = options.micro_batches,
                     .placement = Placement::straight(options.ranks)});
  const auto value = [](const std::vector<double>& list, std::size_t at) {
    return list.empty() ? 0 : list[at];
  };
  for (std::size_t r = 0; r < costs.size(); ++r) {
    const double speed = cost.rank_speed.empty() ? 1 : cost.rank_speed[r];
    RankCosts& own = costs[r];
    own.by_ticks = {
        cost.forward[r] / speed, cost.backward_input[r] / speed, cost.backward_weight[r] / speed};
    own.by_memory = {
        value(cost.memory_forward, r), value(cost.memory_input, r), value(cost.memory_weight, r)};
    own.limit = options.memory_limit.value_or(options.ranks * own.memory(kF) + growth(own));
  }
  return costs;
}

void require_room(const std::vector<RankCosts>& costs) {
  const auto most = std::max_element(costs.begin(), costs.end(), [](const auto& a, const auto& b) {
    return admission(a) < admission(b);
  });
  for (const RankCosts& each : costs)
    require(admission(each) <= each.limit,
            named("memory_limit") + " is " + plan::number_text(each.limit) + "; stage " +
                std::to_string(most - costs.begin()) + " holds " +
                plan::number_text(admission(*most)) + " with one micro-batch, so " +
                plan::number_text(admission(*most)) + " works");
}

}  // namespace

Program zb_auto(const ScheduleOptions& options) {
  const std::vector<RankCosts> costs = rank_costs(options);
  require_room(costs);
  const double latency =
      options.latency * (options.stage_costs ? options.stage_costs->ticks_per_unit : 1);
  plan::Work work(options.stop);
  std::optional<Heuristic> best;
  double best_span = std::numeric_limits<double>::infinity();
  for (const bool bubble_in_warm_up : {true, false})
    for (const bool backward_first : {true, false})
      for (const bool greedy : {true, false}) {
        Heuristic heuristic(
            options.micro_batches, costs, latency, {bubble_in_warm_up, backward_first, greedy});
        if (!heuristic.run(work) || heuristic.span() >= best_span) continue;
        best_span = heuristic.span();
        best.emplace(std::move(heuristic));
      }
  require_order_found(best.has_value(), options);

  return timetable_program(best->take(), options.micro_batches, Placement::straight(options.ranks));
}

}  // namespace millrace::generators
