// The wave pipeline: list scheduling with backwards first, then the lowest micro-batch and stage; a
// forward starts only when the rank also has room for the deeper chunks of its micro-batch, which
// keeps the peak at p micro-batches and cannot get stuck.
#include "millrace/core/error.hpp"
#include "plan/schedules/families.hpp"
#include "plan/schedules/pass_board.hpp"

namespace millrace::generators {

namespace {

class WaveBoard : PassBoard {
 public:
  /// A chunk's activations count as one, whatever they weigh; `program` takes the ops that run.
  WaveBoard(Program& program, std::span<const RankCosts> costs, double latency)
      : PassBoard(costs, latency, program.shape.micro_batches, program.shape.chunks()),
        program_(program),
        chunks_(program.shape.chunks()) {}

  [[nodiscard]] int lanes(int) const { return 2 * chunks_; }
  [[nodiscard]] double start(int rank, int pass) const {
    return is_fed(rank, pass) ? std::max(at(rank).clock, arrival(rank, pass)) : plan::kNever;
  }
  [[nodiscard]] std::int64_t priority(int rank, int pass) const {
    const std::int64_t stages = program_.shape.stages(), backwards = stages * micro_batches();
    return (pass < chunks_ ? backwards : 0) + count(rank, pass) * stages + stage(rank, pass);
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
    if (const int other = PassBoard::fed(rank, pass); other != kNoRank) fed(other);
  }

 private:
  [[nodiscard]] int stage(int rank, int pass) const {
    const int chunk = pass < chunks_ ? pass : 2 * chunks_ - 1 - pass;
    return chunk * ranks() + (chunk % 2 == 0 ? rank : ranks() - 1 - rank);
  }

  Program& program_;
  int chunks_;
};

}  // namespace

Program wave(const Request& options) {
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
  WaveBoard board(program, costs, options.mean.latency * chunks);
  plan::Work work(options.stop);
  const bool complete =
      plan::ListByStart(board, options.ranks)
          .run(ops * program.ranks.size(), [&](std::size_t actions) { work.spend(actions); });
  require(complete, "the wave schedule found no op to run: its memory cap is wrong");
  return program;
}

}  // namespace millrace::generators
