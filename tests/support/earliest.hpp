// The oracle of large timelines: a timeline is right when every action starts exactly when its rank
// and the last of its inputs allow. Of a program without a cycle only one timeline does. Linear,
// where the naive replay keeps maps; it shares no code with the graph either.
#pragma once

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/scheduler/plan/program.hpp"
#include "millrace/scheduler/plan/simulate.hpp"

namespace millrace::testing_plan {

/// Checks timelines of compute-only programs without pairs; links cost Cost::latency.
class EarliestStarts {
 public:
  EarliestStarts(const Program& program, const Cost& cost, const Timeline& timeline)
      : program_(program),
        cost_(cost),
        timeline_(timeline),
        done_(3 * static_cast<std::size_t>(program.shape.forwards())) {
    for (std::size_t r = 0; r < program.ranks.size(); ++r)
      for (std::size_t i = 0; i < program.ranks[r].size(); ++i)
        at(program.ranks[r][i]) = {timeline.ranks[r][i].end, static_cast<int>(r)};
  }

  /// The first action that starts at another time than it can, or nothing.
  [[nodiscard]] std::string fault() const {
    for (std::size_t r = 0; r < program_.ranks.size(); ++r) {
      double free = 0;
      for (std::size_t i = 0; i < program_.ranks[r].size(); ++i) {
        const Action& action = program_.ranks[r][i];
        const Interval& interval = timeline_.ranks[r][i];
        const double start = std::max(free, inputs(action, static_cast<int>(r)));
        if (interval.start != start || interval.end != start + cost_.ticks(action))
          return to_string(action) + " of rank " + std::to_string(r) + " starts at " +
                 std::to_string(interval.start) + ", it can at " + std::to_string(start);
        free = interval.end;
      }
    }
    return "";
  }

 private:
  struct Done {
    double end = std::numeric_limits<double>::infinity();
    int rank = -1;
  };
  enum Product : std::size_t { kActivation, kInputGradient, kWeightGradient };

  [[nodiscard]] std::size_t cell(Product what, int stage, int micro_batch, int slice) const {
    const Shape& shape = program_.shape;
    const auto unit = static_cast<std::size_t>(micro_batch * shape.slices + slice);
    const auto units = static_cast<std::size_t>(shape.micro_batches * shape.slices);
    return (what * static_cast<std::size_t>(shape.stages()) + static_cast<std::size_t>(stage)) *
               units +
           unit;
  }
  Done& at(const Action& a) {
    const Product what = a.op == Op::Forward          ? kActivation
                         : a.op == Op::BackwardWeight ? kWeightGradient
                                                      : kInputGradient;
    return done_[cell(what, a.stage.value, a.micro_batch.value, a.slice.value)];
  }

  /// When the last input of an action is on its rank.
  [[nodiscard]] double inputs(const Action& a, int rank) const {
    const int s = a.stage.value, i = a.micro_batch.value, k = a.slice.value;
    double ready = 0;
    const auto need = [&](Product what, int stage, int slice) {
      const Done& done = done_[cell(what, stage, i, slice)];
      ready = std::max(ready, done.end + (done.rank == rank ? 0 : cost_.latency));
    };
    if (a.op == Op::Forward) {
      if (s > 0) need(kActivation, s - 1, k);
      if (k > 0) need(kActivation, s, k - 1);
    } else if (a.op == Op::BackwardWeight) {
      need(kInputGradient, s, k);
    } else {
      need(kActivation, s, k);
      if (s + 1 < program_.shape.stages()) need(kInputGradient, s + 1, k);
      if (k + 1 < program_.shape.slices) need(kInputGradient, s, k + 1);
    }
    return ready;
  }

  const Program& program_;
  const Cost& cost_;
  const Timeline& timeline_;
  std::vector<Done> done_;
};

}  // namespace millrace::testing_plan
