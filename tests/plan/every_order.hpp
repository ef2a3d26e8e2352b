// The oracle of the tiny cases: every order of every rank's actions, each one simulated.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "plan/search_cases.hpp"
#include "support/order_span.hpp"

namespace millrace::test {

/// Every order of one rank's actions that keeps F before I before W (or F before B) of a
/// micro-batch and stays within the limit, recompute right before I (or B). Micro-batches in any
/// order: nothing is assumed. With `any_recompute` also every choice of micro-batches for it.
class RankOrders {
 public:
  RankOrders(const SmallCase& of, int rank) : of_(of) {
    for (int s = 0; s < of.shape.stages(); ++s)
      if (of.shape.placement.rank(Stage{s}).value == rank)
        for (int i = 0; i < of.shape.micro_batches; ++i) chains_.push_back({Stage{s}, i});
    const unsigned choices = of.any_recompute ? 1U << chains_.size() : 1;
    for (unsigned choice = 0; choice < choices; ++choice) {
      for (std::size_t c = 0; c < chains_.size(); ++c)
        chains_[c].again =
            of.any_recompute ? (choice >> c & 1U) != 0 : recomputes(chains_[c].stage);
      done_.assign(chains_.size(), 0);
      extend(0);
    }
  }

  std::vector<std::vector<Action>> orders;

 private:
  struct Chain {
    Stage stage;
    int micro_batch = 0;
    bool again = false;  // it recomputes
  };

  [[nodiscard]] Op op(int step) const {
    if (step == 0) return Op::Forward;
    if (of_.fused) return Op::Backward;
    return step == 1 ? Op::BackwardInput : Op::BackwardWeight;
  }

  [[nodiscard]] bool recomputes(Stage stage) const {
    return !of_.recompute.empty() && of_.recompute[stage.index()];
  }

  [[nodiscard]] double boundary(std::size_t s) const {
    return of_.cost.memory_boundary.empty() ? 0 : of_.cost.memory_boundary[s];
  }

  [[nodiscard]] double change(Op op, const Chain& chain) const {
    const std::size_t s = chain.stage.index();
    double memory = 0;
    if (op == Op::Forward) memory += chain.again ? boundary(s) : of_.cost.memory_forward[s];
    if (op == Op::Recompute) memory += of_.cost.memory_forward[s] - boundary(s);
    if (gives_input_gradient(op)) memory += of_.cost.memory_input[s];
    if (gives_weight_gradient(op)) memory += of_.cost.memory_weight[s];
    return memory;
  }

  /// Appends an action if its rank has room for it; the memory after it.
  bool append(Op op, const Chain& chain, double& memory) {
    const std::vector<double>& peaks = of_.cost.memory_forward_peak;
    if (!peaks.empty() && (op == Op::Forward || op == Op::Recompute)) {
      const double held = op == Op::Recompute ? boundary(chain.stage.index()) : 0;
      if (memory - held + peaks[chain.stage.index()] > of_.memory_limit) return false;
    }
    if (gives_input_gradient(op)) {
      const double passing = of_.cost.memory_input_peak[chain.stage.index()];
      const double kept = of_.cost.memory_input[chain.stage.index()];
      if (memory + std::max(passing, kept) > of_.memory_limit) return false;
    }
    memory += change(op, chain);
    if (memory > of_.memory_limit) return false;
    order_.push_back({op, false, 0, 0, chain.stage, MicroBatch{chain.micro_batch}, {}});
    return true;
  }

  void extend(double memory) {
    const int steps = of_.fused ? 2 : 3;
    if (std::ranges::all_of(done_, [&](int done) { return done == steps; })) {
      orders.push_back(order_);
      return;
    }
    for (std::size_t c = 0; c < chains_.size(); ++c) {
      if (done_[c] == steps) continue;
      const Op next = op(done_[c]);
      const std::size_t before = order_.size();
      double after = memory;
      const bool again = gives_input_gradient(next) && chains_[c].again;
      if ((!again || append(Op::Recompute, chains_[c], after)) && append(next, chains_[c], after)) {
        ++done_[c];
        extend(after);
        --done_[c];
      }
      order_.resize(before);
    }
  }

  const SmallCase& of_;
  std::vector<Chain> chains_;
  std::vector<int> done_;
  std::vector<Action> order_;
};

/// Smallest objective over all programs; infinite when nothing fits.
inline double brute_force(const SmallCase& of) {
  std::vector<RankOrders> ranks;
  for (int r = 0; r < of.shape.ranks; ++r) ranks.emplace_back(of, r);
  double best = std::numeric_limits<double>::infinity();
  for (const RankOrders& rank : ranks)
    if (rank.orders.empty()) return best;
  Program program{.shape = of.shape, .ranks = {}, .name = {}};
  program.ranks.resize(ranks.size());
  std::vector<std::size_t> at(ranks.size(), 0);
  while (true) {
    for (std::size_t r = 0; r < ranks.size(); ++r) program.ranks[r] = ranks[r].orders[at[r]];
    const double value = of.objective == Objective::Span
                             ? testing_plan::OrderSpan(program, of.cost).value()
                             : test::simulated(program, of.cost, of.objective);
    best = std::min(best, value);
    std::size_t r = 0;
    while (r < ranks.size() && ++at[r] == ranks[r].orders.size()) at[r++] = 0;
    if (r == ranks.size()) return best;
  }
}

}  // namespace millrace::test
