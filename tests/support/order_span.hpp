// The oracle of the span: the smallest over all starts, from its definition. Longest paths from
// every rank's first action to every rank's last, one lane per rank, in a replay that knows the
// dependencies by itself; then every simple cycle of ranks. Shares no code with graph, clock,
// period or search.
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/scheduler/plan/program.hpp"

namespace millrace::testing_plan {

/// For compute-only programs without pairs, of at most eight ranks; recompute is known.
class OrderSpan {
 public:
  OrderSpan(const Program& program, const Cost& cost)
      : program_(program),
        cost_(cost),
        ranks_(program.ranks.size()),
        done_(3 * static_cast<std::size_t>(program.shape.forwards())) {}

  /// Infinite when the program deadlocks. In ticks.
  double value() {
    std::vector<std::size_t> next(ranks_, 0);
    std::vector<Lanes> clock(ranks_);
    for (std::size_t r = 0; r < ranks_; ++r) {
      clock[r].fill(-kInfinity);
      clock[r][r] = 0;
    }
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t r = 0; r < ranks_; ++r)
        while (next[r] < program_.ranks[r].size() && run(r, program_.ranks[r][next[r]], clock[r])) {
          ++next[r];
          moved = true;
        }
    }
    for (std::size_t r = 0; r < ranks_; ++r)
      if (next[r] < program_.ranks[r].size()) return kInfinity;
    largest_ = 0;
    std::vector<bool> used(ranks_, false);
    for (std::size_t r = 0; r < ranks_; ++r) extend(clock, r, r, 0, 1, used);
    return largest_;
  }

 private:
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  using Lanes = std::array<double, 8>;
  struct Done {
    Lanes end = {};
    int rank = -1;
  };
  enum Product : std::size_t { kActivation, kInputGradient, kWeightGradient };

  Done& at(Product what, int stage, int micro_batch, int slice) {
    const Shape& shape = program_.shape;
    const auto unit = static_cast<std::size_t>(micro_batch * shape.slices + slice);
    const auto units = static_cast<std::size_t>(shape.micro_batches * shape.slices);
    return done_[(what * static_cast<std::size_t>(shape.stages()) +
                  static_cast<std::size_t>(stage)) *
                     units +
                 unit];
  }

  /// Moves the rank's lanes to the end of the action; false when an input is missing.
  bool run(std::size_t rank, const Action& a, Lanes& clock) {
    const int s = a.stage.value, i = a.micro_batch.value, k = a.slice.value;
    Lanes begin = clock;
    const auto need = [&](Product what, int stage, int slice) {
      const Done& input = at(what, stage, i, slice);
      if (input.rank < 0) return false;
      const Rank from{input.rank}, to{static_cast<std::int32_t>(rank)};
      const int all = program_.shape.ranks;
      const double way =
          from == to ? 0 : cost_.delay(from, to, all) + cost_.transfer(from, to, all);
      for (std::size_t r = 0; r < ranks_; ++r) begin[r] = std::max(begin[r], input.end[r] + way);
      return true;
    };
    const bool last = s + 1 == program_.shape.stages(), end = k + 1 == program_.shape.slices;
    bool there = true;
    Product made = kInputGradient;
    if (a.op == Op::Recompute) {
      there = need(kActivation, s, k);
    } else if (a.op == Op::Forward) {
      there = (s == 0 || need(kActivation, s - 1, k)) && (k == 0 || need(kActivation, s, k - 1));
      made = kActivation;
    } else if (a.op == Op::BackwardWeight) {
      there = need(kInputGradient, s, k);
      made = kWeightGradient;
    } else {
      there = need(kActivation, s, k) && (last || need(kInputGradient, s + 1, k)) &&
              (end || need(kInputGradient, s, k + 1));
    }
    if (!there) return false;
    const double speed = cost_.rank_speed.empty() ? 1 : cost_.rank_speed[rank];
    for (std::size_t r = 0; r < ranks_; ++r) clock[r] = begin[r] + cost_.ticks(a) / speed;
    if (a.op != Op::Recompute) at(made, s, i, k) = {clock, static_cast<int>(rank)};
    return true;
  }

  /// Every simple cycle that begins with `from` and has only larger ranks.
  void extend(const std::vector<Lanes>& reach,
              std::size_t from,
              std::size_t rank,
              double ticks,
              double wraps,
              std::vector<bool>& used) {
    if (program_.ranks[rank].empty()) return;
    largest_ = std::max(largest_, (ticks + reach[from][rank]) / wraps);
    used[rank] = true;
    for (std::size_t next = from + 1; next < ranks_; ++next)
      if (!used[next]) extend(reach, from, next, ticks + reach[next][rank], wraps + 1, used);
    used[rank] = false;
  }

  const Program& program_;
  const Cost& cost_;
  std::size_t ranks_;
  std::vector<Done> done_;
  double largest_ = 0;
};

}  // namespace millrace::testing_plan
