// Random orders of one replica's split backward, for the tests of the span.
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "millrace/core/random.hpp"
#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/scheduler/plan/program.hpp"

namespace millrace::test {

/// Random orders that run to their end: of the actions whose inputs are there, mostly one of those
/// that can start first, so that ranks wait little; in every second order W come last, so that the
/// early ops of a rank have time to wait.
class RandomOrder {
 public:
  RandomOrder(const Shape& shape, const Cost& cost, int number)
      : shape_(shape),
        cost_(cost),
        weights_last_(number % 2 == 0),
        key_{.seed = 77, .purpose = Purpose::Test, .step = static_cast<std::uint64_t>(number)},
        ran_(static_cast<std::size_t>(shape.forwards()), 0),
        end_(ran_.size(), 0),
        clock_(static_cast<std::size_t>(shape.ranks), 0) {}

  Program draw() {
    Program result{.shape = shape_, .ranks = {}, .name = "random"};
    result.ranks.resize(clock_.size());
    for (std::size_t left = 3 * ran_.size(); left > 0; --left) {
      const Action next = choose();
      const std::size_t rank = shape_.placement.rank(next.stage).index();
      clock_[rank] = start(next) + cost_.ticks(next);
      end_[place(next.stage.value, next.micro_batch.value)] = clock_[rank];
      ++ran_[place(next.stage.value, next.micro_batch.value)];
      result.ranks[rank].push_back(next);
    }
    return result;
  }

 private:
  static constexpr std::array kOrder = {Op::Forward, Op::BackwardInput, Op::BackwardWeight};

  [[nodiscard]] std::size_t place(int stage, int micro_batch) const {
    return static_cast<std::size_t>(stage * shape_.micro_batches + micro_batch);
  }

  [[nodiscard]] bool ready(int s, int i) const {
    const int ran = ran_[place(s, i)];
    if (ran == 0) return s == 0 || ran_[place(s - 1, i)] > 0;
    return ran == 2 || (ran == 1 && (s + 1 == shape_.stages() || ran_[place(s + 1, i)] > 1));
  }

  /// About when the action can start: messages of W aside, the last end of a neighbour.
  [[nodiscard]] double start(const Action& action) const {
    const int s = action.stage.value, i = action.micro_batch.value;
    double begin = clock_[shape_.placement.rank(action.stage).index()];
    if (action.op == Op::Forward && s > 0) begin = std::max(begin, end_[place(s - 1, i)]);
    if (action.op == Op::BackwardInput && s + 1 < shape_.stages())
      begin = std::max(begin, end_[place(s + 1, i)]);
    return begin;
  }

  Action choose() {
    std::vector<Action> all;
    for (int s = 0; s < shape_.stages(); ++s)
      for (int i = 0; i < shape_.micro_batches; ++i)
        if (ready(s, i))
          all.push_back({kOrder[static_cast<std::size_t>(ran_[place(s, i)])],
                         false,
                         0,
                         0,
                         Stage{s},
                         MicroBatch{i},
                         {}});
    const auto random = [&](std::size_t bound) {
      return random_below(key_, drawn_++, static_cast<std::uint32_t>(bound));
    };
    const auto is_weight = [](const Action& action) { return action.op == Op::BackwardWeight; };
    if (weights_last_ && !std::ranges::all_of(all, is_weight)) std::erase_if(all, is_weight);
    if (random(8) == 0) return all[random(all.size())];
    double first = std::numeric_limits<double>::infinity();
    for (const Action& action : all) first = std::min(first, start(action));
    std::erase_if(all, [&](const Action& action) { return start(action) > first; });
    return all[random(all.size())];
  }

  const Shape& shape_;
  const Cost& cost_;
  bool weights_last_;
  RandomKey key_;
  std::uint32_t drawn_ = 0;
  std::vector<int> ran_;     // by stage and micro-batch: how many of F, I and W
  std::vector<double> end_;  // by stage and micro-batch: of the last that ran
  std::vector<double> clock_;
};

}  // namespace millrace::test
