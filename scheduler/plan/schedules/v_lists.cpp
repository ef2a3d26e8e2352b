// ZBV, DualPipeV and STP as tables of counts, and DualPipe as the mirror of DualPipeV. A rank's
// list is written as "count times these ops", as the schedules were published. Micro-batches are
// not written: each chunk's forwards, backwards and weights count up on their own.
#include <algorithm>
#include <deque>
#include <string>

#include "plan/model/work.hpp"
#include "plan/schedules/families.hpp"

namespace millrace::generators {

namespace {

constexpr int kOldest = -1;  ///< chunk of a weight half that takes the oldest one owed

/// One op of a step. `with_next` marks the first half of an overlapped pair.
struct Token {
  Op op;
  int chunk;
  bool with_next = false;
};

/// `count` times `tokens`, in order. A count of 0 or less is an empty step.
struct Step {
  int count;
  std::vector<Token> tokens;
};

class Expansion {
 public:
  Expansion(const std::vector<Stage>& stages, int micro_batches)
      : stages_(stages),
        micro_batches_(micro_batches),
        forwards_(stages.size()),
        backwards_(stages.size()),
        weights_(stages.size()) {}

  void add(const Token& token) {
    switch (token.op) {
      case Op::Forward:
        return emit(token, token.chunk, forwards_[at(token.chunk)]++);
      case Op::BackwardWeight:
        return weight(token);
      default:
        break;
    }
    const int micro_batch = backwards_[at(token.chunk)]++;
    if (token.op == Op::BackwardInput) owed_.push_back({token.chunk, micro_batch});
    emit(token, token.chunk, micro_batch);
  }

  std::vector<Action> take() { return std::move(actions_); }

 private:
  struct Owed {
    int chunk;
    int micro_batch;
  };

  static std::size_t at(int chunk) { return static_cast<std::size_t>(chunk); }

  void weight(const Token& token) {
    if (token.chunk != kOldest) return emit(token, token.chunk, weights_[at(token.chunk)]++);
    const Owed oldest = owed_.front();
    owed_.pop_front();
    emit(token, oldest.chunk, oldest.micro_batch);
  }

  void emit(const Token& token, int chunk, int micro_batch) {
    if (micro_batch >= micro_batches_) return;
    actions_.push_back({.op = token.op,
                        .with_next = token.with_next,
                        .stage = stages_[at(chunk)],
                        .micro_batch = MicroBatch{micro_batch},
                        .slice = {}});
  }

  const std::vector<Stage>& stages_;
  int micro_batches_;
  std::vector<int> forwards_, backwards_, weights_;
  std::deque<Owed> owed_;
  std::vector<Action> actions_;
};

/// Expands the steps of one rank that holds `stages` (chunk 0 first). Full backwards and input
/// halves of a chunk share one count. Actions of micro-batches at or past `micro_batches` are left
/// out. Cost: O(actions).
std::vector<Action> expand(const std::vector<Step>& steps,
                           const std::vector<Stage>& stages,
                           int micro_batches) {
  Expansion expansion(stages, micro_batches);
  for (const Step& step : steps)
    for (int repeat = 0; repeat < step.count; ++repeat)
      for (const Token& token : step.tokens) expansion.add(token);
  return expansion.take();
}

constexpr Token kF0{Op::Forward, 0}, kF1{Op::Forward, 1};
constexpr Token kB0{Op::Backward, 0}, kB1{Op::Backward, 1};
constexpr Token kI0{Op::BackwardInput, 0}, kI1{Op::BackwardInput, 1};
constexpr Token kW0{Op::BackwardWeight, 0}, kW1{Op::BackwardWeight, 1};
constexpr Token kOldestW{Op::BackwardWeight, kOldest};

constexpr Token paired(Token first) {
  first.with_next = true;
  return first;
}

Shape vee_shape(const Request& options) {
  return {.ranks = options.ranks,
          .micro_batches = options.micro_batches,
          .placement = Placement::vee(options.ranks),
          .replica_of = {}};
}

/// p ranks, rank r, n micro-batches (at least 2p-1).
std::vector<Step> zb_v_steps(int p, int r, int n) {
  return {{2 * (p - r) - 1, {kF0}},
          {r, {kF1, kF0}},
          {p - r, {kF1, kI1, kW1}},
          {n - 2 * p + r + 1, {kF0, kI0, kW0, kF1, kI1, kW1}},
          {p - r - 1, {kI0, kW0, kF1, kI1, kW1}},
          {r, {kI0, kI1}},
          {p - r, {kI0, kW0}},
          {r, {kW1}},
          {r, {kW0}}};
}

/// The eight phases; the sixth changes from full backwards to input halves in its middle.
std::vector<Step> dualpipe_v_steps(int p, int r, int m) {
  const bool last = r == p - 1, even = r % 2 == 0;
  const std::vector<Token> both = {paired(kF0), kB1, paired(kF1), kB0};
  return {{2 * (p - r - 1), {kF0}},
          {r + 1, {kF0, kF1}},
          {p - r - 1, {kI1, kOldestW, kF1}},
          {last ? 1 : 0, {kF0, kB1, paired(kF1), kB0}},
          {m - 2 * p + r + 1 - (last ? 1 : 0), both},
          {p - r - 1, {kB1, paired(kF1), kB0}},
          {(r + 1) / 2, {kB1, kB0}},
          {even ? 1 : 0, {kB1, kI0}},
          {(r + 1) / 2, {kI1, kI0}},
          {p - r - 1, {kOldestW, kI0}},
          {r + 1, {kOldestW}}};
}

/// The nine phases; the fifth changes from full backwards to input halves for its last r pairs.
std::vector<Step> stp_steps(int p, int r, int m) {
  const int after = p - 1 - r, pairs = 2 * (m - 3 * p + 1) + 1 + 2 * r;
  std::vector<Step> steps = {{2 * after, {kF0}},
                             {r + 1, {kF0, kF1}},
                             {(r + 1) % 2, {kF0}},
                             {(r + 1) / 2, {paired(kF0), kF0}},
                             {after, {paired(kF1), kI1, paired(kF0), kOldestW}}};
  for (int pair = 0; pair < pairs; ++pair) {
    const bool split = pair >= pairs - r;
    steps.push_back({1,
                     pair % 2 == 0 ? std::vector{paired(kF1), split ? kI1 : kB1}
                                   : std::vector{paired(kF0), split ? kI0 : kB0}});
  }
  steps.insert(steps.end(),
               {{2 * p - 2 - r, {kB0, paired(kF1), kI1}},
                {r + 1, {kB0, kB1}},
                {after, {kB0, kOldestW, kOldestW}},
                {1, {kB0}},
                {2 * r, {kOldestW}}});
  return steps;
}

/// Throws where the table of a schedule has a count below 0: for fewer micro-batches than `least`.
void require_full_pipe(const Request& options, const char* formula, int least) {
  require(options.micro_batches >= least,
          given("micro_batches", options.micro_batches, options) +
              "; this schedule works from m = " + formula + ": at least " + std::to_string(least));
}

/// A V of two chunks, from the steps of each rank; some have them for a least m, and leave out the
/// actions of the micro-batches that are not there.
template <class Steps>
Program vee_program(const Request& options, int micro_batches, Steps&& steps) {
  const int ranks = options.ranks;
  Program program{.shape = vee_shape(options), .ranks = {}, .name = {}};
  plan::Work work(options.stop);
  for (int rank = 0; rank < ranks; ++rank) {
    program.ranks.push_back(expand(steps(ranks, rank, micro_batches),
                                   {Stage{rank}, Stage{2 * ranks - 1 - rank}},
                                   options.micro_batches));
    work.spend(program.ranks.back().size());
  }
  return program;
}

}  // namespace

Program zb_v(const Request& options) {
  return vee_program(options, std::max(2 * options.ranks - 1, options.micro_batches), zb_v_steps);
}

Program dualpipe_v(const Request& options) {
  require_full_pipe(options, "2p", 2 * options.ranks);
  return vee_program(options, options.micro_batches, dualpipe_v_steps);
}

Program stp(const Request& options) {
  require_full_pipe(options, "3p-1", 3 * options.ranks - 1);
  return vee_program(options, options.micro_batches, stp_steps);
}

Program dualpipe(const Request& options) {
  const int ranks = options.ranks, half = options.micro_batches / 2;
  require_even_ranks(options);
  require(options.micro_batches % 2 == 0,
          named("micro_batches") + " is " + std::to_string(options.micro_batches) +
              "; a bidirectional pipeline works with an even number, half of it each way");
  require_full_pipe(options, "2p", 2 * ranks);

  Program program{.shape = {.ranks = ranks,
                            .micro_batches = options.micro_batches,
                            .placement = Placement::mirrored(ranks),
                            .replica_of = {}},
                  .ranks = {},
                  .name = {}};
  for (int m = 0; m < options.micro_batches; ++m)
    program.shape.replica_of.emplace_back(m < half ? 0 : 1);
  plan::Work work(options.stop);
  for (int rank = 0; rank < ranks; ++rank) {
    const int end = rank < ranks / 2 ? 0 : 1;
    const int distance = std::min(rank, ranks - 1 - rank);
    std::vector<Action> list = expand(dualpipe_v_steps(ranks / 2, distance, half),
                                      {Stage{distance}, Stage{ranks - 1 - distance}},
                                      half);
    for (Action& action : list) {
      const bool entered_here = action.stage.value == distance;
      action.replica_number = static_cast<std::uint8_t>(entered_here ? end : 1 - end);
      action.micro_batch = MicroBatch{action.micro_batch.value + action.replica_number * half};
    }
    work.spend(list.size());
    program.ranks.push_back(std::move(list));
  }
  return program;
}

}  // namespace millrace::generators
