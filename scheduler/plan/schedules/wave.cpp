// List scheduling of the wave pipeline. A forward starts only when the rank also has room for the
// deeper chunks of its micro-batch, which keeps the peak at p micro-batches and cannot get stuck.
#include "plan/schedules/wave.hpp"

#include <algorithm>
#include <limits>
#include <optional>

#include "millrace/scheduler/plan/stage_graph.hpp"
#include "plan/schedules/options.hpp"
#include "plan/search/work.hpp"

namespace millrace::generators {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// One op that a rank could run next; the smaller is preferred.
struct Candidate {
  double start;
  bool is_forward;  // backwards first
  int micro_batch;
  int stage;

  friend auto operator<=>(const Candidate&, const Candidate&) = default;
};

class WaveScheduler {
 public:
  WaveScheduler(Program& program, const ScheduleOptions& options)
      : program_(program),
        shape_(program.shape),
        graph_(shape_),
        chunks_(shape_.chunks()),
        micro_batches_(shape_.micro_batches),
        // Ticks of one chunk; multiplied by v so that integer costs stay integers.
        forward_ticks_(options.forward),
        backward_ticks_(options.input + options.weight),
        latency_(options.latency * chunks_),
        next_forward_(stages()),
        next_backward_(stages()),
        forward_end_(stages() * static_cast<std::size_t>(micro_batches_), kNever),
        backward_end_(forward_end_),
        clock_(ranks()),
        live_(ranks()),
        best_(ranks()),
        work_(options.stop) {}

  void run() {
    for (int rank = 0; rank < shape_.ranks; ++rank) refresh(rank);
    const std::size_t total = 2 * stages() * static_cast<std::size_t>(micro_batches_);
    for (std::size_t scheduled = 0; scheduled < total; ++scheduled) {
      work_.spend(1 + ranks() / 8);
      const auto first =
          std::ranges::min_element(best_, {}, [](const std::optional<Candidate>& best) {
            return best ? best->start : kNever;
          });
      require(first->has_value(), "the wave schedule found no op to run: its memory cap is wrong");
      commit(static_cast<int>(first - best_.begin()), **first);
    }
  }

 private:
  [[nodiscard]] std::size_t stages() const { return static_cast<std::size_t>(shape_.stages()); }
  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(shape_.ranks); }
  [[nodiscard]] std::size_t at(int stage, int micro_batch) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(micro_batches_) +
           static_cast<std::size_t>(micro_batch);
  }
  [[nodiscard]] int rank_of(int stage) const { return shape_.placement.rank(Stage{stage}).value; }
  /// The stage of the rank's chunk (zigzag: the two directions alternate).
  [[nodiscard]] int stage_of(int rank, int chunk) const {
    const int offset = chunk % 2 == 0 ? rank : shape_.ranks - 1 - rank;
    return chunk * shape_.ranks + offset;
  }
  [[nodiscard]] double arrival(double end, int from, int to) const {
    return rank_of(from) == rank_of(to) ? end : end + latency_;
  }

  /// When the inputs of the forward are there; kNever when not all are scheduled.
  [[nodiscard]] double forward_ready(int stage, int micro_batch) const {
    double ready = 0;
    graph_.for_each_entering(Stage{stage}, [&](const StageLink& link) {
      const int from = link.from.value;
      ready = std::max(ready, arrival(forward_end_[at(from, micro_batch)], from, stage));
    });
    return ready;
  }
  [[nodiscard]] double backward_ready(int stage, int micro_batch) const {
    double ready = forward_end_[at(stage, micro_batch)];
    graph_.for_each_leaving(Stage{stage}, [&](const StageLink& link) {
      const int from = link.to.value;
      ready = std::max(ready, arrival(backward_end_[at(from, micro_batch)], from, stage));
    });
    return ready;
  }

  /// Recomputes the best candidate of a rank.
  void refresh(int rank) {
    auto& best = best_[static_cast<std::size_t>(rank)];
    best.reset();
    const double clock = clock_[static_cast<std::size_t>(rank)];
    const auto offer = [&](double ready, bool is_forward, int micro_batch, int stage) {
      if (ready == kNever) return;
      const Candidate candidate{std::max(clock, ready), is_forward, micro_batch, stage};
      if (!best || candidate < *best) best = candidate;
    };
    for (int chunk = 0; chunk < chunks_; ++chunk) {
      const int stage = stage_of(rank, chunk), deeper = chunks_ - 1 - chunk;
      const int forward = next_forward_[static_cast<std::size_t>(stage)];
      const int backward = next_backward_[static_cast<std::size_t>(stage)];
      const bool has_room =
          live_[static_cast<std::size_t>(rank)] + 1 + deeper <= chunks_ * shape_.ranks;
      if (forward < micro_batches_ && has_room)
        offer(forward_ready(stage, forward), true, forward, stage);
      if (backward < micro_batches_) offer(backward_ready(stage, backward), false, backward, stage);
    }
  }

  void commit(int rank, Candidate chosen) {
    const auto stage = static_cast<std::size_t>(chosen.stage);
    const double end = chosen.start + (chosen.is_forward ? forward_ticks_ : backward_ticks_);
    (chosen.is_forward ? forward_end_ : backward_end_)[at(chosen.stage, chosen.micro_batch)] = end;
    ++(chosen.is_forward ? next_forward_ : next_backward_)[stage];
    live_[static_cast<std::size_t>(rank)] += chosen.is_forward ? 1 : -1;
    clock_[static_cast<std::size_t>(rank)] = end;
    const Action action{.op = chosen.is_forward ? Op::Forward : Op::Backward,
                        .stage = Stage{chosen.stage},
                        .micro_batch = MicroBatch{chosen.micro_batch},
                        .slice = {}};
    program_.ranks[static_cast<std::size_t>(rank)].push_back(action);

    refresh(rank);
    for_each_link_out(graph_, action, [&](const StageLink& link) {
      const int fed = rank_of(chosen.is_forward ? link.to.value : link.from.value);
      if (fed != rank) refresh(fed);
    });
  }

  Program& program_;
  const Shape& shape_;
  const StageGraph graph_;
  int chunks_;
  int micro_batches_;
  double forward_ticks_, backward_ticks_, latency_;
  std::vector<int> next_forward_, next_backward_;   // per stage
  std::vector<double> forward_end_, backward_end_;  // per stage and micro-batch
  std::vector<double> clock_;                       // per rank
  std::vector<int> live_;                           // per rank: chunk activations held
  std::vector<std::optional<Candidate>> best_;      // per rank
  plan::Work work_;
};

}  // namespace

Program wave(const ScheduleOptions& options) {
  const int chunks = 2 * options.waves.value_or(1);
  Program program{.shape = {.ranks = options.ranks,
                            .micro_batches = options.micro_batches,
                            .placement = Placement::zigzag(options.ranks, chunks),
                            .replica_of = {}},
                  .ranks = {},
                  .name = {}};
  program.ranks.resize(static_cast<std::size_t>(options.ranks));
  WaveScheduler(program, options).run();
  return program;
}

}  // namespace millrace::generators
