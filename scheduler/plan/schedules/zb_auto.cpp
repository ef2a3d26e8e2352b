// ZB auto (Qi et al. 2023, section 3 and the zero-bubble project): decide forward by forward and
// backward by backward, fill every wait with owed weight halves, keep within the memory limit.
#include "plan/schedules/zb_auto.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <vector>

#include "plan/schedules/options.hpp"
#include "plan/search/work.hpp"
#include "plan/text/number_text.hpp"

namespace millrace::generators {

namespace {

enum Kind : std::uint8_t { kForward, kInput, kWeight };

/// One rank's times and changes of memory, by kind, and what it may hold.
struct RankCost {
  std::array<double, 3> ticks{}, memory{};
  double limit = 0;

  /// An F is admitted only where the I that follows it fits as well: an I that keeps more for W
  /// than it frees would find no room later.
  [[nodiscard]] double admission() const { return memory[kForward] + growth(); }
  [[nodiscard]] double growth() const { return std::max(0.0, memory[kInput]); }
};

/// The three rules that a run may follow or not.
struct Rules {
  bool bubble_in_warm_up;  ///< the warm-up may leave a bubble rather than delay the first backward
  bool backward_first;     ///< a backward may come before an early forward
  bool greedy;             ///< a started wait is always filled
};

class Heuristic {
 public:
  Heuristic(const ScheduleOptions& options,
            const std::vector<RankCost>& costs,
            double latency,
            Rules rules)
      : ranks_(options.ranks),
        micro_batches_(options.micro_batches),
        costs_(costs),
        latency_(latency),
        rules_(rules),
        state_(static_cast<std::size_t>(ranks_)),
        forward_end_(cells()),
        input_end_(cells()) {
    for (State& state : state_) state.order.reserve(3 * static_cast<std::size_t>(micro_batches_));
  }

  /// False when the limit leaves no way on.
  bool run(plan::Work& work) {
    if (!warm_up()) return false;
    for (int micro_batch = 1; micro_batch < micro_batches_; ++micro_batch) {
      work.spend(3 * state_.size());
      if (!steady(micro_batch)) return false;
    }
    for (int rank = 0; rank < ranks_; ++rank)
      while (owed(rank) > 0) place(rank, kWeight);
    return true;
  }

  /// Longest time from a rank's first start to its last end.
  [[nodiscard]] double span() const {
    double longest = 0;
    for (int rank = 0; rank < ranks_; ++rank)
      longest = std::max(longest,
                         at(rank).clock - forward_end_[cell(rank, 0)] + cost(rank).ticks[kForward]);
    return longest;
  }

  [[nodiscard]] std::vector<Action> list(int rank) const {
    std::vector<Action> actions;
    actions.reserve(at(rank).order.size());
    std::array<int, 3> next{};
    constexpr std::array kOps = {Op::Forward, Op::BackwardInput, Op::BackwardWeight};
    for (const Kind kind : at(rank).order)
      actions.push_back({.op = kOps[kind],
                         .stage = Stage{rank},
                         .micro_batch = MicroBatch{next[kind]++},
                         .slice = {}});
    return actions;
  }

 private:
  struct State {
    std::array<int, 3> count{};  // ops placed, by kind
    double clock = 0;
    double memory = 0;
    double bubble = 0;
    std::vector<Kind> order;
  };

  [[nodiscard]] std::size_t cells() const {
    return static_cast<std::size_t>(ranks_) * static_cast<std::size_t>(micro_batches_);
  }
  // Micro-batch major: a pass over the ranks walks neighbouring cells.
  [[nodiscard]] std::size_t cell(int rank, int micro_batch) const {
    return static_cast<std::size_t>(micro_batch) * static_cast<std::size_t>(ranks_) +
           static_cast<std::size_t>(rank);
  }
  [[nodiscard]] State& at(int rank) { return state_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const State& at(int rank) const { return state_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const RankCost& cost(int rank) const {
    return costs_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] int owed(int rank) const {
    return at(rank).count[kInput] - at(rank).count[kWeight];
  }

  /// When the input of the rank's next op of this kind arrives; 0 at the end of the pipeline.
  [[nodiscard]] double arrival(int rank, Kind kind) const {
    if (kind == kForward && rank > 0)
      return forward_end_[cell(rank - 1, at(rank).count[kForward])] + latency_;
    if (kind == kInput && rank + 1 < ranks_)
      return input_end_[cell(rank + 1, at(rank).count[kInput])] + latency_;
    return 0;
  }

  void place(int rank, Kind kind) {
    State& state = at(rank);
    const double ticks = cost(rank).ticks[kind];
    const double without_wait = state.clock + ticks;
    double end = without_wait;
    if (kind != kWeight) {
      end = std::max(end, arrival(rank, kind) + ticks);
      (kind == kForward ? forward_end_ : input_end_)[cell(rank, state.count[kind])] = end;
    }
    if (state.count[kForward] > 0 && end > without_wait) {
      state.bubble += end - without_wait;
      most_bubble_ = std::max(most_bubble_, state.bubble);
    }
    state.clock = end;
    state.memory += cost(rank).memory[kind];
    ++state.count[kind];
    state.order.push_back(kind);
  }

  /// Uses the wait until `time` for owed weight halves; the last one may overshoot.
  void fill(int rank, double time) {
    State& state = at(rank);
    while (owed(rank) > 0 && state.clock + cost(rank).ticks[kWeight] <= time) place(rank, kWeight);
    if (owed(rank) == 0 || state.clock >= time) return;
    if (rules_.greedy || time - state.clock > most_bubble_ - state.bubble) place(rank, kWeight);
  }

  /// Runs owed weight halves until `change` fits under the limit; false when none is left.
  bool make_room(int rank, double change) {
    while (at(rank).memory + change > cost(rank).limit) {
      if (owed(rank) == 0) return false;
      place(rank, kWeight);
    }
    return true;
  }

  /// First forwards, extra forwards, first backwards.
  bool warm_up() {
    for (int rank = 0; rank < ranks_; ++rank) {
      if (at(rank).memory + cost(rank).admission() > cost(rank).limit) return false;
      place(rank, kForward);
    }
    const std::vector<int> extra = extra_forwards();
    for (int rank = 0; rank < ranks_; ++rank)
      for (int index = 0; index < extra[static_cast<std::size_t>(rank)]; ++index)
        place(rank, kForward);
    for (int rank = ranks_ - 1; rank >= 0; --rank) place(rank, kInput);
    return true;
  }

  /// How many more forwards each rank runs before its first backward arrives.
  std::vector<int> extra_forwards() {
    std::vector<int> extra(static_cast<std::size_t>(ranks_));
    double last = forward_end_[cell(ranks_ - 1, 0)] + cost(ranks_ - 1).ticks[kInput];
    for (int rank = ranks_ - 2; rank >= 0; --rank) {
      const State& state = at(rank);
      const RankCost& own = cost(rank);
      int& count = extra[static_cast<std::size_t>(rank)];
      double clock = state.clock, memory = state.memory;
      const double due = last + latency_;
      while (state.count[kForward] + count < micro_batches_ &&
             memory + own.admission() <= own.limit) {
        if (rules_.bubble_in_warm_up ? clock + own.ticks[kForward] > due : clock >= due) break;
        clock += own.ticks[kForward];
        memory += own.memory[kForward];
        ++count;
      }
      last = std::max(clock, due) + own.ticks[kInput];
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
    const State& state = at(rank);
    if (!rules_.backward_first || rank + 1 >= ranks_) return true;
    const State& next = at(rank + 1);
    if (state.count[kForward] < next.count[kForward] + 2) return true;

    const RankCost& cost_of_next = cost(rank + 1);
    const double due =
        next.clock + cost_of_next.ticks[kForward] + cost_of_next.ticks[kInput] + latency_;
    if (state.clock >= due) return false;
    if (state.clock + cost(rank).ticks[kForward] + room_ticks(rank) <= due) return true;
    return due - state.clock > most_bubble_ - state.bubble;
  }

  /// Time of the weight halves that must run before one more forward fits.
  [[nodiscard]] double room_ticks(int rank) const {
    const RankCost& own = cost(rank);
    double memory = at(rank).memory, ticks = 0;
    for (int left = owed(rank); left > 0 && memory + own.admission() > own.limit; --left) {
      memory += own.memory[kWeight];
      ticks += own.ticks[kWeight];
    }
    return ticks;
  }

  /// Forwards that come first, then backward `micro_batch` from the last rank to the first.
  bool steady(int micro_batch) {
    std::vector<bool>& chosen = chosen_;
    chosen.assign(static_cast<std::size_t>(ranks_), true);
    for (int rank = 0; rank < ranks_; ++rank)
      if (at(rank).count[kForward] < micro_batches_)
        chosen[static_cast<std::size_t>(rank)] = wants_forward(rank);
    for (std::size_t rank = chosen.size() - 1; rank-- > 0;)
      chosen[rank] = chosen[rank] && chosen[rank + 1];

    for (int rank = 0; rank < ranks_; ++rank) {
      if (!chosen[static_cast<std::size_t>(rank)]) continue;
      if (at(rank).count[kForward] == micro_batches_) continue;
      if (!make_room(rank, cost(rank).admission())) return false;
      if (rank > 0) fill(rank, arrival(rank, kForward));
      place(rank, kForward);
    }
    for (int rank = ranks_ - 1; rank >= 0; --rank) {
      if (!make_room(rank, cost(rank).memory[kInput])) return false;
      if (rank + 1 < ranks_) fill(rank, arrival(rank, kInput));
      if (rank == 0 && at(rank).count[kForward] == micro_batches_)
        while (owed(rank) > 0) place(rank, kWeight);
      place(rank, kInput);
    }
    return at(0).count[kInput] == micro_batch + 1;
  }

  int ranks_, micro_batches_;
  const std::vector<RankCost>& costs_;
  double latency_;
  Rules rules_;
  double most_bubble_ = 0;  // of all ranks; bubbles never shrink
  std::vector<State> state_;
  std::vector<double> forward_end_, input_end_;
  std::vector<bool> chosen_;
};

/// The costs of every rank, from the stages' own where they are given. Without a limit a rank may
/// hold p micro-batches of its own stage.
std::vector<RankCost> rank_costs(const ScheduleOptions& options) {
  RankCost mean{{options.forward, options.input, options.weight},
                {options.memory_forward, options.memory_input, options.memory_weight}};
  mean.limit = memory_limit_of(options) + (options.memory_limit ? 0 : mean.growth());
  std::vector<RankCost> costs(static_cast<std::size_t>(options.ranks), mean);
  if (!options.stage_costs) return costs;
  const Cost& cost = *options.stage_costs;
  cost.require_fits({.ranks = options.ranks,
                     .micro_batches = options.micro_batches,
                     .placement = Placement::straight(options.ranks)});
  const auto value = [](const std::vector<double>& list, std::size_t at) {
    return list.empty() ? 0 : list[at];
  };
  for (std::size_t r = 0; r < costs.size(); ++r) {
    RankCost& own = costs[r];
    const double speed = cost.rank_speed.empty() ? 1 : cost.rank_speed[r];
    own.ticks = {
        cost.forward[r] / speed, cost.backward_input[r] / speed, cost.backward_weight[r] / speed};
    own.memory = {
        value(cost.memory_forward, r), value(cost.memory_input, r), value(cost.memory_weight, r)};
    own.limit = options.memory_limit.value_or(options.ranks * own.memory[kForward] + own.growth());
  }
  return costs;
}

void require_room(const std::vector<RankCost>& costs) {
  const auto most = std::max_element(costs.begin(), costs.end(), [](const auto& a, const auto& b) {
    return a.admission() < b.admission();
  });
  for (const RankCost& each : costs)
    require(each.admission() <= each.limit,
            named("memory_limit") + " is " + plan::number_text(each.limit) + "; stage " +
                std::to_string(most - costs.begin()) + " holds " +
                plan::number_text(most->admission()) + " with one micro-batch, so " +
                plan::number_text(most->admission()) + " works");
}

}  // namespace

Program zb_auto(const ScheduleOptions& options) {
  const std::vector<RankCost> costs = rank_costs(options);
  require_room(costs);
  const double latency =
      options.latency * (options.stage_costs ? options.stage_costs->ticks_per_unit : 1);
  plan::Work work(options.stop);
  std::optional<Heuristic> best;
  double best_span = std::numeric_limits<double>::infinity();
  for (const bool bubble_in_warm_up : {true, false})
    for (const bool backward_first : {true, false})
      for (const bool greedy : {true, false}) {
        Heuristic heuristic(options, costs, latency, {bubble_in_warm_up, backward_first, greedy});
        if (!heuristic.run(work) || heuristic.span() >= best_span) continue;
        best_span = heuristic.span();
        best.emplace(std::move(heuristic));
      }
  require_order_found(best.has_value(), options);

  Program program{.shape = {.ranks = options.ranks,
                            .micro_batches = options.micro_batches,
                            .placement = Placement::straight(options.ranks)}};
  for (int rank = 0; rank < options.ranks; ++rank) program.ranks.push_back(best->list(rank));
  return program;
}

}  // namespace millrace::generators
