// An oracle that shares no code with the library: every order of every rank of a tiny pipeline,
// played action by action, with the bytes that a rank holds inside its passes.
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

namespace millrace::test {

/// A stage of whole numbers: times of F, I and W, and the bytes that F adds, that I adds while it
/// runs, and that I leaves. W gives everything back.
struct TinyStage {
  std::array<int, 3> times = {};
  int added = 0, passing = 0, left = 0;
};

/// A straight pipeline, one stage on each rank.
struct TinyPipeline {
  std::vector<TinyStage> stages;
  int micro_batches = 1;
  int limit = std::numeric_limits<int>::max();

  /// The smallest makespan of all orders within the limit; -1: none is.
  [[nodiscard]] int best() const;
  /// The smallest limit that any order keeps.
  [[nodiscard]] int least_limit() const;
};

namespace tiny {

/// A pass of a micro-batch: 0 F, 1 I, 2 W.
struct Pass {
  int kind = 0, micro_batch = 0;
};
using Order = std::vector<Pass>;

/// All orders of one rank that never hold more than the limit.
inline void extend(const TinyPipeline& of,
                   const TinyStage& stage,
                   int held,
                   std::vector<int>& done,
                   Order& order,
                   std::vector<Order>& orders) {
  if (order.size() == 3 * done.size()) orders.push_back(order);
  for (int i = 0; i < of.micro_batches; ++i) {
    int& kind = done[static_cast<std::size_t>(i)];
    if (kind == 3) continue;
    const int after = std::array{held + stage.added,
                                 held + stage.left,
                                 held - stage.added - stage.left}[static_cast<std::size_t>(kind)];
    const int most = std::max({held, after, kind == 1 ? held + stage.passing : 0});
    if (most > of.limit) continue;
    order.push_back({kind++, i});
    extend(of, stage, after, done, order, orders);
    order.pop_back();
    --kind;
  }
}

/// The makespan of one order for each rank; -1 when they wait for each other.
inline int played(const TinyPipeline& of, const std::vector<const Order*>& orders) {
  const std::size_t ranks = orders.size(), units = static_cast<std::size_t>(of.micro_batches);
  std::vector<int> ends(ranks * units * 3, -1), clock(ranks, 0);
  std::vector<std::size_t> next(ranks, 0);
  const auto end = [&](std::size_t rank, Pass pass) -> int& {
    return ends[(rank * units + static_cast<std::size_t>(pass.micro_batch)) * 3 +
                static_cast<std::size_t>(pass.kind)];
  };
  for (std::size_t left = ranks * units * 3; left > 0;) {
    bool moved = false;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (next[rank] == orders[rank]->size()) continue;
      const Pass pass = (*orders[rank])[next[rank]];
      int ready = 0;
      if (pass.kind == 0 && rank > 0) ready = end(rank - 1, pass);
      if (pass.kind == 1 && rank + 1 < ranks) ready = end(rank + 1, pass);
      if (ready < 0) continue;
      clock[rank] =
          std::max(clock[rank], ready) + of.stages[rank].times[static_cast<std::size_t>(pass.kind)];
      end(rank, pass) = clock[rank];
      ++next[rank];
      --left;
      moved = true;
    }
    if (!moved) return -1;
  }
  return *std::max_element(clock.begin(), clock.end());
}

}  // namespace tiny

inline int TinyPipeline::best() const {
  std::vector<std::vector<tiny::Order>> all;
  for (const TinyStage& stage : stages) {
    std::vector<int> done(static_cast<std::size_t>(micro_batches), 0);
    tiny::Order order;
    tiny::extend(*this, stage, 0, done, order, all.emplace_back());
    if (all.back().empty()) return -1;
  }
  int best = -1;
  std::vector<std::size_t> at(all.size(), 0);
  while (true) {
    std::vector<const tiny::Order*> orders;
    for (std::size_t r = 0; r < all.size(); ++r) orders.push_back(&all[r][at[r]]);
    const int makespan = tiny::played(*this, orders);
    if (makespan >= 0 && (best < 0 || makespan < best)) best = makespan;
    std::size_t r = 0;
    while (r < all.size() && ++at[r] == all[r].size()) at[r++] = 0;
    if (r == all.size()) return best;
  }
}

inline int TinyPipeline::least_limit() const {
  int least = 0;
  for (const TinyStage& stage : stages)
    least = std::max({least, stage.added, stage.added + stage.passing, stage.added + stage.left});
  return least;
}

}  // namespace millrace::test
