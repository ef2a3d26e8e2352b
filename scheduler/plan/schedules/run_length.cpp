// Expands run-length programs: counters per chunk and one queue of owed weight halves.
#include "plan/schedules/run_length.hpp"

#include <deque>

namespace millrace::generators {

namespace {

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

}  // namespace

std::vector<Action> expand(const std::vector<Step>& steps,
                           const std::vector<Stage>& stages,
                           int micro_batches) {
  Expansion expansion(stages, micro_batches);
  for (const Step& step : steps)
    for (int repeat = 0; repeat < step.count; ++repeat)
      for (const Token& token : step.tokens) expansion.add(token);
  return expansion.take();
}

}  // namespace millrace::generators
