// The wave pipeline: list scheduling by three rules, of which the fastest order is taken; a forward
// starts only when the rank also has room for the deeper chunks of its micro-batch, which keeps the
// peak at p micro-batches and cannot get stuck while the order is free.
#include <optional>

#include "millrace/core/error.hpp"
#include "plan/schedules/families.hpp"
#include "plan/schedules/pass_board.hpp"

namespace millrace::generators {

namespace {

/// Which of the ops that could start at the same time runs; of equals the lowest micro-batch and
/// stage. Only Backwards looks at the latency: the others would put a forward before a backward
/// that is a little late.
enum class WaveRule : std::uint8_t {
  /// Backwards, in the mirrored order of the forwards, for which a rank waits: two micro-batches
  /// apart, a group of p keeps its ranks in step. Shortest for m <= p; may get stuck for more.
  InStep,
  Backwards,  ///< backwards as they come: a group of micro-batches drains before the next fills
  Forwards,   ///< forwards, as far as there is room: fills across groups
};

class WaveBoard : PassBoard {
 public:
  /// A chunk's activations count as one, whatever they weigh; `program` takes the ops that run.
  WaveBoard(Program& program, std::span<const RankCosts> costs, double latency, WaveRule rule)
      : PassBoard(costs,
                  rule == WaveRule::Backwards ? latency : 0,
                  program.shape.micro_batches,
                  program.shape.chunks()),
        timed_(costs, latency, program.shape.micro_batches, program.shape.chunks()),
        program_(program),
        chunks_(program.shape.chunks()),
        rule_(rule),
        due_(program.ranks.size(), chunks_) {}

  [[nodiscard]] int lanes(int) const { return 2 * chunks_; }
  [[nodiscard]] double start(int rank, int pass) const {
    const bool waits = rule_ == WaveRule::InStep && pass >= chunks_ && pass != due(rank);
    return !waits && is_fed(rank, pass) ? std::max(at(rank).clock, arrival(rank, pass))
                                        : plan::kNever;
  }
  [[nodiscard]] std::int64_t priority(int rank, int pass) const {
    const std::int64_t stages = program_.shape.stages(), all = stages * micro_batches();
    const bool first = (pass < chunks_) == (rule_ == WaveRule::Forwards);
    return (first ? 0 : all) + count(rank, pass) * stages + stage(rank, pass);
  }
  [[nodiscard]] bool admits(int rank, int pass) const {
    return pass >= chunks_ || at(rank).memory + (chunks_ - pass) <= chunks_ * ranks();
  }

  template <class Fed>
  void run(int rank, int pass, Fed&& fed) {
    program_.ranks[static_cast<std::size_t>(rank)].push_back(
        {.op = pass < chunks_ ? Op::Forward : Op::Backward,
         .stage = Stage{stage(rank, pass)},
         .micro_batch = MicroBatch{count(rank, pass)},
         .slice = {}});
    PassBoard::run(rank, pass);
    timed_.run(rank, pass);
    if (pass >= chunks_) due_[static_cast<std::size_t>(rank)] = next_in_step(rank);
    if (const int other = PassBoard::fed(rank, pass); other != kNoRank) fed(other);
  }

  [[nodiscard]] double makespan() const {
    double last = 0;
    for (int rank = 0; rank < ranks(); ++rank) last = std::max(last, timed_.at(rank).clock);
    return last;
  }

 private:
  [[nodiscard]] int due(int rank) const { return due_[static_cast<std::size_t>(rank)]; }

  /// The backward pass that comes next in step: by group, stages of a micro-batch one apart,
  /// micro-batches of a stage two.
  [[nodiscard]] int next_in_step(int rank) const {
    int next = chunks_;
    std::int64_t first = std::numeric_limits<std::int64_t>::max();
    for (int pass = chunks_; pass < 2 * chunks_; ++pass) {
      const int micro_batch = count(rank, pass), stages = program_.shape.stages();
      const std::int64_t step = std::int64_t{4} * stages * (micro_batch / ranks()) +
                                2 * (micro_batch % ranks()) + stages - stage(rank, pass);
      if (micro_batch == micro_batches() || step > first) continue;
      next = pass;
      first = step;
    }
    return next;
  }

  [[nodiscard]] int stage(int rank, int pass) const {
    const int chunk = pass < chunks_ ? pass : 2 * chunks_ - 1 - pass;
    return chunk * ranks() + (chunk % 2 == 0 ? rank : ranks() - 1 - rank);
  }

  PassBoard timed_;
  Program& program_;
  int chunks_;
  WaveRule rule_;
  std::vector<int> due_;  // by rank: the backward pass that is next in step
};

struct Timed {
  Program program;
  double makespan = 0;
};

/// None: the rule got stuck.
std::optional<Timed> wave_by(WaveRule rule, const Request& options) {
  const int chunks = 2 * options.waves.value_or(1);
  Program program{.shape = {.ranks = options.ranks,
                            .micro_batches = options.micro_batches,
                            .placement = Placement::zigzag(options.ranks, chunks)}};
  const std::size_t ops =
      2 * static_cast<std::size_t>(chunks) * static_cast<std::size_t>(options.micro_batches);
  program.ranks.resize(static_cast<std::size_t>(options.ranks));
  for (auto& list : program.ranks) list.reserve(ops);
  // Ticks of a chunk times the chunks, which keeps integers whole.
  const std::vector<RankCosts> costs(program.ranks.size(),
                                     {.forward = {options.mean.forward, 1},
                                      .input = {options.mean.input + options.mean.weight, -1},
                                      .weight = {}});
  WaveBoard board(program, costs, options.mean.latency * chunks, rule);
  plan::Work work(options.stop);
  const bool complete =
      plan::ListByStart(board, options.ranks)
          .run(ops * program.ranks.size(), [&](std::size_t actions) { work.spend(actions); });
  if (!complete) return std::nullopt;
  return Timed{std::move(program), board.makespan()};
}

}  // namespace

Program wave(const Request& options) {
  std::optional<Timed> best;
  for (const WaveRule rule : {WaveRule::InStep, WaveRule::Backwards, WaveRule::Forwards}) {
    auto made = wave_by(rule, options);
    if (made && (!best || made->makespan < best->makespan)) best = std::move(made);
  }
  require(best.has_value(), "the wave schedule found no op to run: its memory cap is wrong");
  return std::move(best->program);
}

}  // namespace millrace::generators
