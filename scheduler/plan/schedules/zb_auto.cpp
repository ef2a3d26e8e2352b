// ZB auto (Qi et al. 2023, section 3 and the zero-bubble project): decide forward by forward and
// backward by backward, fill every wait with owed weight halves, keep within the memory limit.
#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "plan/schedules/families.hpp"
#include "plan/schedules/pass_board.hpp"
#include "plan/text/number_text.hpp"

namespace millrace::generators {

namespace {

/// An F is admitted only where the I that follows it fits as well: an I that keeps more for W than
/// it frees would find no room later.
double growth(const RankCosts& costs) {
  return std::max(0.0, costs.input.memory);
}
double admission(const RankCosts& costs) {
  return costs.forward.memory + growth(costs);
}

/// The three rules that a run may follow or not.
struct Rules {
  bool bubble_in_warm_up;  ///< the warm-up may leave a bubble rather than delay the first backward
  bool backward_first;     ///< a backward may come before an early forward
  bool greedy;             ///< a started wait is always filled
};

class Heuristic : PassBoard {
 public:
  Heuristic(const std::vector<RankCosts>& costs, double latency, int micro_batches, Rules rules)
      : PassBoard(costs, latency, micro_batches, 1), latency_(latency), rules_(rules) {}

  using PassBoard::take;

  /// False when the limit leaves no way on.
  bool run(plan::Work& work) {
    warm_up();
    for (int micro_batch = 1; micro_batch < micro_batches(); ++micro_batch) {
      work.spend(3 * static_cast<std::size_t>(ranks()));
      if (!steady()) return false;
    }
    for (int rank = 0; rank < ranks(); ++rank) settle(rank);
    return true;
  }

  /// Longest time from a rank's first start to its last end.
  [[nodiscard]] double span() const {
    double longest = 0;
    for (int rank = 0; rank < ranks(); ++rank)
      longest = std::max(longest, at(rank).clock - end(rank, kF, 0) + cost(rank).forward.ticks);
    return longest;
  }

 private:
  /// First forwards, extra forwards, first backwards.
  void warm_up() {
    for (int rank = 0; rank < ranks(); ++rank) place(rank, kF);
    for (int rank = 0; const int extra : extra_forwards()) {
      for (int left = extra; left > 0; --left) place(rank, kF);
      ++rank;
    }
    for (int rank = ranks() - 1; rank >= 0; --rank) place(rank, kb);
  }

  /// How many more forwards each rank runs before its first backward arrives.
  std::vector<int> extra_forwards() {
    std::vector<int> extra(static_cast<std::size_t>(ranks()));
    double last = end(ranks() - 1, kF, 0) + cost(ranks() - 1).input.ticks;
    for (int rank = ranks() - 2; rank >= 0; --rank) {
      const RankCosts& own = cost(rank);
      int& number = extra[static_cast<std::size_t>(rank)];
      double clock = at(rank).clock, memory = at(rank).memory;
      const double due = last + latency_;
      while (1 + number < micro_batches() && memory + admission(own) <= own.limit) {
        if (rules_.bubble_in_warm_up ? clock + own.forward.ticks > due : clock >= due) break;
        clock += own.forward.ticks;
        memory += own.forward.memory;
        ++number;
      }
      last = std::max(clock, due) + own.input.ticks;
    }
    for (std::size_t rank = 1; rank < extra.size(); ++rank) {
      // Never more than the rank before it sends (ranks may differ), and one fewer where it may.
      const int most = extra[rank - 1];
      const bool may_be_fewer = most > 0 && 1 + most < micro_batches();
      extra[rank] = std::min(extra[rank], may_be_fewer ? most - 1 : most);
    }
    return extra;
  }

  /// Whether the rank should run a forward before its next backward.
  [[nodiscard]] bool wants_forward(int rank) const {
    if (!has_left(rank, kF) || !rules_.backward_first || rank + 1 >= ranks()) return true;
    if (count(rank, kF) < count(rank + 1, kF) + 2) return true;

    const RankCosts& next = cost(rank + 1);
    const double clock = at(rank).clock;
    const double due = at(rank + 1).clock + next.forward.ticks + next.input.ticks + latency_;
    return clock + cost(rank).forward.ticks + room_ticks(rank) <= due || due - clock > slack(rank);
  }

  /// Time of the weight halves that must run before one more forward fits.
  [[nodiscard]] double room_ticks(int rank) const {
    const RankCosts& own = cost(rank);
    double memory = at(rank).memory, ticks = 0;
    for (int left = at(rank).owed; left > 0 && memory + admission(own) > own.limit; --left) {
      memory += own.weight.memory;
      ticks += own.weight.ticks;
    }
    return ticks;
  }

  /// Forwards that come first, on the last ranks as far up as they are wanted, then a backward of
  /// every rank from the last to the first.
  bool steady() {
    const auto run_next = [this](int rank, Symbol pass, double change) {
      return place_next(rank, pass, change, rules_.greedy ? 0 : slack(rank));
    };
    int first = ranks() - 1;
    while (first > 0 && wants_forward(first - 1)) --first;
    for (int rank = first; rank < ranks(); ++rank)
      if (has_left(rank, kF) && !run_next(rank, kF, admission(cost(rank)))) return false;
    if (!has_left(0, kF)) settle(0);
    for (int rank = ranks() - 1; rank >= 0; --rank)
      if (!run_next(rank, kb, cost(rank).input.memory)) return false;
    return true;
  }

  double latency_;
  Rules rules_;
};

/// The costs of the stages; all the same unless they are given.
Cost stage_costs(const Request& options) {
  const Shape shape{.ranks = options.ranks,
                    .micro_batches = options.micro_batches,
                    .placement = Placement::straight(options.ranks)};
  if (options.stages) {
    options.stages->require_fits(shape);
    return *options.stages;
  }
  Cost cost = Cost::of_full_stage(
      shape, options.mean.forward, options.mean.input, options.mean.weight, options.mean.latency);
  cost.memory_forward.assign(cost.forward.size(), options.mean.memory_forward);
  cost.memory_forward_peak.assign(cost.forward.size(), options.mean.memory_forward_peak);
  cost.memory_input.assign(cost.forward.size(), options.mean.memory_input);
  cost.memory_weight.assign(cost.forward.size(), options.mean.memory_weight);
  cost.memory_input_peak.assign(cost.forward.size(), options.mean.memory_input_peak.value_or(0));
  return cost;
}

/// The same by rank. Without a limit a rank may hold p micro-batches of its own stage.
std::vector<RankCosts> rank_costs(const Request& options, const Cost& cost) {
  std::vector<RankCosts> costs(cost.forward.size());
  const auto value = [](const std::vector<double>& list, std::size_t at) {
    return list.empty() ? 0 : list[at];
  };
  for (std::size_t r = 0; r < costs.size(); ++r) {
    const double speed = cost.rank_speed.empty() ? 1 : cost.rank_speed[r];
    RankCosts& own = costs[r];
    own.forward = {cost.forward[r] / speed, value(cost.memory_forward, r)};
    own.input = {cost.backward_input[r] / speed, value(cost.memory_input, r)};
    own.weight = {cost.backward_weight[r] / speed, value(cost.memory_weight, r)};
    own.limit = options.ranks * own.forward.memory + growth(own);
    if (!options.memory_limit) continue;
    const double in_forward = value(cost.memory_forward_peak, r) - own.forward.memory;
    own.passing = passing_memory(std::max(value(cost.memory_input_peak, r), in_forward),
                                 own.input.memory);  // a forward runs where its I fits too
    own.limit = *options.memory_limit - own.passing;
  }
  return costs;
}

/// The same limit holds on every rank where one is given, and there is room where none is.
void require_room(const std::vector<RankCosts>& costs) {
  const auto wanted = [](const RankCosts& own) { return admission(own) + own.passing; };
  const auto most = std::ranges::max_element(costs, {}, wanted);
  const std::string held = plan::number_text(wanted(*most));
  require(admission(*most) <= most->limit,
          named("memory_limit") + " is " + plan::number_text(most->limit + most->passing) +
              "; stage " + std::to_string(most - costs.begin()) + " holds " + held +
              " with one micro-batch, so " + held + " works");
}

}  // namespace

Program zb_auto(const Request& options) {
  const Cost cost = stage_costs(options);
  const std::vector<RankCosts> costs = rank_costs(options, cost);
  require_room(costs);
  const double latency = options.mean.latency * cost.ticks_per_unit;
  plan::Work work(options.stop);
  std::optional<Heuristic> best;
  double best_span = std::numeric_limits<double>::infinity();
  for (const bool bubble_in_warm_up : {true, false})
    for (const bool backward_first : {true, false})
      for (const bool greedy : {true, false}) {
        Heuristic heuristic(
            costs, latency, options.micro_batches, {bubble_in_warm_up, backward_first, greedy});
        if (!heuristic.run(work) || heuristic.span() >= best_span) continue;
        best_span = heuristic.span();
        best.emplace(std::move(heuristic));
      }
  require_order_found(best.has_value(), options);

  return timetable_program(best->take(), options.micro_batches, Placement::straight(options.ranks));
}

}  // namespace millrace::generators
