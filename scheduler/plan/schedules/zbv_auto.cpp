// ZBV auto (Qi et al. 2024 and the zero-bubble project): warm-up, fill of the V, then rounds of one
// backward and one forward per rank, with owed weight halves in the waits.
#include "plan/schedules/zbv_auto.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <optional>
#include <vector>

#include "plan/schedules/options.hpp"
#include "plan/search/work.hpp"

namespace millrace::generators {

namespace {

/// Classes in the order of a micro-batch's data on one rank.
enum Class : std::uint8_t { kF0, kF1, kB1, kB0 };

struct Entry {
  Op op;
  int chunk;
  int micro_batch;
};

class Heuristic {
 public:
  Heuristic(const ScheduleOptions& options,
            double limit,
            bool fill_backward,
            bool fill_forward,
            const std::vector<double>& approved)
      : ranks_(options.ranks),
        micro_batches_(options.micro_batches),
        // A chunk is half a stage; doubling the latency instead keeps integers whole.
        ticks_{options.forward, options.forward, options.input, options.input},
        weight_ticks_(options.weight),
        memory_forward_(options.memory_forward / 2),
        memory_input_(options.memory_input / 2),
        memory_weight_(options.memory_weight / 2),
        latency_(2 * options.latency),
        limit_(limit),
        fill_backward_(fill_backward),
        fill_forward_(fill_forward),
        approved_(approved),
        state_(static_cast<std::size_t>(ranks_)) {
    most_approved_ = *std::ranges::max_element(approved_);
    for (auto& ends : end_)
      ends.resize(static_cast<std::size_t>(ranks_) * static_cast<std::size_t>(micro_batches_));
  }

  /// False when the limit leaves no way on.
  bool run(plan::Work& work) {
    for (int rank = 0; rank < ranks_; ++rank) place(kF0, rank);
    warm_up();
    fill_the_vee();
    for (int round = 0; round < 2 * micro_batches_; ++round) {
      work.spend(3 * state_.size());
      if (!backwards() || !forwards()) return false;
    }
    for (int rank = 0; rank < ranks_; ++rank)
      while (!at(rank).owed.empty()) weight(rank);
    return is_complete();
  }

  [[nodiscard]] double score() const { return std::max(0.0, most_bubble_); }

  [[nodiscard]] std::vector<double> bubbles() const {
    std::vector<double> bubbles;
    for (const State& state : state_) bubbles.push_back(state.bubble);
    return bubbles;
  }

  [[nodiscard]] std::vector<Action> list(int rank) const {
    std::vector<Action> actions;
    actions.reserve(at(rank).order.size());
    for (const Entry& entry : at(rank).order)
      actions.push_back({.op = entry.op,
                         .stage = Stage{entry.chunk == 0 ? rank : 2 * ranks_ - 1 - rank},
                         .micro_batch = MicroBatch{entry.micro_batch},
                         .slice = {}});
    return actions;
  }

 private:
  struct State {
    std::array<int, 4> count{};
    double clock = 0, memory = 0, bubble = 0;
    std::deque<Entry> owed;
    std::vector<Entry> order;
  };

  [[nodiscard]] State& at(int rank) { return state_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const State& at(int rank) const { return state_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] std::size_t cell(int rank, int micro_batch) const {
    return static_cast<std::size_t>(micro_batch) * static_cast<std::size_t>(ranks_) +
           static_cast<std::size_t>(rank);
  }
  static bool is_forward(Class kind) { return kind == kF0 || kind == kF1; }
  static bool moves_right(Class kind) { return kind == kF0 || kind == kB1; }

  /// Whether the rank that feeds this class has run the micro-batch that this rank wants next.
  [[nodiscard]] bool is_fed(Class kind, int rank) const {
    const int feeder = moves_right(kind) ? rank - 1 : rank + 1;
    return feeder < 0 || feeder >= ranks_ || at(feeder).count[kind] > at(rank).count[kind];
  }
  /// When the neighbour's result arrives; before everything when there is no neighbour, or when it
  /// has not run it: below p x mem-f the filling of the V may ask that early.
  [[nodiscard]] double arrival(Class kind, int rank) const {
    const int feeder = moves_right(kind) ? rank - 1 : rank + 1;
    if (feeder < 0 || feeder >= ranks_) return 0;
    return end_[kind][cell(feeder, at(rank).count[kind])] + latency_;
  }

  void place(Class kind, int rank) {
    State& state = at(rank);
    const int micro_batch = state.count[kind];
    const double without_wait = state.clock + ticks_[kind];
    const double end = std::max(without_wait, arrival(kind, rank) + ticks_[kind]);
    if (state.count[kF0] > 0) add_bubble(state, end - without_wait);
    state.clock = end;
    end_[kind][cell(rank, micro_batch)] = end;
    state.memory += is_forward(kind) ? memory_forward_ : memory_input_;
    ++state.count[kind];
    const int chunk = kind == kF1 || kind == kB1 ? 1 : 0;
    state.order.push_back({is_forward(kind) ? Op::Forward : Op::BackwardInput, chunk, micro_batch});
    if (!is_forward(kind)) state.owed.push_back({Op::BackwardWeight, chunk, micro_batch});
  }

  void weight(int rank) {
    State& state = at(rank);
    state.clock += weight_ticks_;
    state.memory += memory_weight_;
    state.order.push_back(state.owed.front());
    state.owed.pop_front();
  }

  void add_bubble(State& state, double wait) {
    state.bubble += wait;
    most_bubble_ = std::max(most_bubble_, state.bubble);
  }

  /// How much more bubble this rank may have without being the worst.
  [[nodiscard]] double slack(int rank) const {
    const double approved = most_approved_ - approved_[static_cast<std::size_t>(rank)];
    return std::max(std::max(0.0, most_bubble_), approved) - at(rank).bubble;
  }

  /// Uses the wait for the op's data; with `overshoot` also when a weight half ends too late.
  void prepare(Class kind, int rank, bool overshoot) {
    State& state = at(rank);
    const double due = arrival(kind, rank);
    while (!state.owed.empty() && due >= state.clock + weight_ticks_) weight(rank);
    if (!state.owed.empty() && overshoot && due - state.clock > slack(rank)) weight(rank);
  }

  bool make_room(int rank, double change) {
    State& state = at(rank);
    while (state.memory + change > limit_) {
      if (state.owed.empty()) return false;
      weight(rank);
    }
    return true;
  }

  /// From the turn back to rank 0: more forwards while they fit before the first F1.
  void warm_up() {
    for (int rank = ranks_ - 1; rank >= 0; --rank) {
      const State& state = at(rank);
      if (rank + 1 < ranks_) {
        const double due = end_[kF1][cell(rank + 1, 0)] + latency_;
        while (state.memory + memory_forward_ * (2 + 2 * rank) <= limit_ &&
               state.clock + ticks_[kF0] <= due && state.count[kF0] < micro_batches_)
          for (int below = 0; below <= rank; ++below) place(kF0, below);
      }
      place(kF1, rank);
    }
  }

  /// Alternates F1 and F0 until every rank has as many forwards as the one before it.
  void fill_the_vee() {
    Class next = kF0;
    for (int rank = 1; rank < ranks_; ++rank) {
      const State &state = at(rank), &before = at(rank - 1);
      while (state.count[kF0] + state.count[kF1] < before.count[kF0] + before.count[kF1] ||
             (state.count[kF1] <= before.count[kF1] && before.count[kF1] < micro_batches_)) {
        for (int deeper = ranks_ - 1; deeper >= rank; --deeper)
          if (at(deeper).count[next] < micro_batches_) place(next, deeper);
        next = next == kF0 ? kF1 : kF0;
      }
    }
  }

  /// The backward of a rank in this round.
  [[nodiscard]] Class choose_backward(int rank) const {
    const State& state = at(rank);
    if (state.count[kB0] >= state.count[kB1]) return kB1;
    const bool is_due = rank + 1 == ranks_ || is_fed(kB0, rank);
    return is_due || state.count[kB1] >= micro_batches_ ? kB0 : kB1;
  }

  bool backwards() {
    for (int rank = 0; rank < ranks_; ++rank)
      if (!make_room(rank, memory_input_)) return false;
    chosen_.clear();
    for (int rank = 0; rank < ranks_; ++rank) chosen_.push_back(choose_backward(rank));
    for (int rank = ranks_ - 1; rank >= 0; --rank)
      if (chosen_[static_cast<std::size_t>(rank)] == kB0 && !run_backward(kB0, rank, true))
        return false;
    for (int rank = 0; rank < ranks_; ++rank)
      if (chosen_[static_cast<std::size_t>(rank)] == kB1 &&
          !run_backward(kB1, rank, fill_backward_))
        return false;
    return true;
  }

  bool run_backward(Class kind, int rank, bool overshoot) {
    if (at(rank).count[kind] == micro_batches_ || !is_fed(kind, rank)) return false;
    prepare(kind, rank, overshoot);
    place(kind, rank);
    return true;
  }

  bool forwards() {
    for (int rank = 0; rank < ranks_; ++rank) {
      const State& state = at(rank);
      if (state.count[kF1] >= micro_batches_) continue;
      Class kind = kF0;
      if (state.count[kF1] < state.count[kF0]) {
        if (rank + 1 == ranks_ || is_fed(kF1, rank))
          kind = kF1;
        else if (state.count[kF0] >= micro_batches_ || !is_fed(kF0, rank))
          continue;
      }
      if (!is_fed(kind, rank) || !make_room(rank, memory_forward_)) return false;
      prepare(kind, rank, fill_forward_);
      place(kind, rank);
    }
    return true;
  }

  [[nodiscard]] bool is_complete() const {
    return std::ranges::all_of(state_, [&](const State& state) {
      return std::ranges::all_of(state.count, [&](int count) { return count == micro_batches_; });
    });
  }

  int ranks_, micro_batches_;
  std::array<double, 4> ticks_;
  double weight_ticks_, memory_forward_, memory_input_, memory_weight_, latency_, limit_;
  bool fill_backward_, fill_forward_;
  std::vector<double> approved_;
  double most_approved_ = 0, most_bubble_ = 0;
  std::vector<State> state_;
  std::array<std::vector<double>, 4> end_;  // by class: end per rank and micro-batch
  std::vector<Class> chosen_;
};

}  // namespace

Program zb_v_auto(const ScheduleOptions& options) {
  const double limit = memory_limit_of(options);
  plan::Work work(options.stop);
  std::optional<Heuristic> best;
  for (const bool fill_backward : {true, false})
    for (const bool fill_forward : {true, false}) {
      std::vector<double> approved(static_cast<std::size_t>(options.ranks), -1);
      double most_approved = std::numeric_limits<double>::infinity();
      while (true) {
        Heuristic heuristic(options, limit, fill_backward, fill_forward, approved);
        if (!heuristic.run(work)) break;
        const double score = heuristic.score();
        const bool improves = score < most_approved;
        approved = heuristic.bubbles();
        if (!best || score < best->score()) best.emplace(std::move(heuristic));
        if (!improves) break;
        most_approved = *std::ranges::max_element(approved);
      }
    }
  require_order_found(best.has_value(), options);

  Program program{.shape = {.ranks = options.ranks,
                            .micro_batches = options.micro_batches,
                            .placement = Placement::vee(options.ranks)}};
  for (int rank = 0; rank < options.ranks; ++rank) program.ranks.push_back(best->list(rank));
  return program;
}

}  // namespace millrace::generators
