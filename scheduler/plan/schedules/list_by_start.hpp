// The list scheduler: every rank names the op that it could start first, and the rank whose op
// starts first runs it. What there is to run, what comes first and what is admitted a board says:
// one of counters for a pipeline (pass_board.hpp), one of nodes for any job (list_schedule.cpp).
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

namespace millrace::plan {

/// The start of what cannot run.
inline constexpr double kNever = std::numeric_limits<double>::infinity();
inline constexpr int kNoLane = -1;

/// Weight rule: whether a rank that is free at `clock` and has nothing else to start before `due`
/// runs a weight half of that many ticks. It does where that ends in time, and where it would leave
/// more than `allowance` of the wait empty.
[[nodiscard]] inline bool takes_wait(double clock, double ticks, double due, double allowance) {
  return clock + ticks <= due || due - clock > allowance;
}

/// The rank whose op starts first, of equals the lowest: a tournament, so that with many ranks a
/// change costs O(log ranks).
class Earliest {
 public:
  explicit Earliest(std::size_t ranks)
      : leaves_(std::bit_ceil(ranks)), start_(leaves_, kNever), winner_(2 * leaves_) {
    for (std::size_t r = 0; r < leaves_; ++r) winner_[leaves_ + r] = static_cast<std::uint32_t>(r);
    for (std::size_t match = leaves_; match-- > 1;) winner_[match] = winner_[2 * match];
  }

  void set(std::size_t rank, double start) {
    start_[rank] = start;
    for (std::size_t match = (leaves_ + rank) / 2; match > 0; match /= 2) {
      const std::uint32_t lower = winner_[2 * match], upper = winner_[2 * match + 1];
      winner_[match] = start_[upper] < start_[lower] ? upper : lower;
    }
  }

  [[nodiscard]] std::size_t rank() const { return winner_[1]; }
  [[nodiscard]] bool is_none() const { return start_[rank()] == kNever; }

 private:
  std::size_t leaves_;
  std::vector<double> start_;
  std::vector<std::uint32_t> winner_;  // by match; the final is 1, of m they are 2m and 2m + 1
};

/// List scheduling over a board, which says for every rank
///   lanes(rank): how many kinds of ops it has that run in an order of their own
///   start(rank, lane): when the lane's next op could start, kNever when it cannot run yet
///   priority(rank, lane): of ops that could start at the same time, the smaller runs
///   admits(rank, lane): whether the rank has room for it
///   run(rank, lane, fed): runs it, and calls `fed(other)` for the other ranks that may now go on
/// and, where it owes weight halves, clock(rank): when the rank is free, and filler(rank, due): the
/// lane of a half that runs before `due`, or kNoLane. Thread-safety: externally synchronised.
template <class Board>
class ListByStart {
 public:
  ListByStart(Board& board, int ranks)
      : board_(board), next_(static_cast<std::size_t>(ranks)), earliest_(next_.size()) {}

  /// Runs `ops` ops; false when no rank can go on before that. `spend(actions)` counts them.
  template <class Spend>
  bool run(std::size_t ops, Spend&& spend) {
    for (std::size_t r = 0; r < next_.size(); ++r) choose(static_cast<int>(r));
    for (; ops > 0; --ops) {
      spend(1 + next_.size() / 8);
      if (earliest_.is_none()) return false;
      const std::size_t first = earliest_.rank();
      const int rank = static_cast<int>(first);
      board_.run(rank, next_[first], [&](int fed) {
        if (fed != rank) choose(fed);
      });
      choose(rank);
    }
    return true;
  }

 private:
  /// Names the lane that the rank runs next, as far as is known now.
  void choose(int rank) {
    int best = kNoLane;
    double first = kNever;
    for (int lane = 0, lanes = board_.lanes(rank); lane < lanes; ++lane) {
      const double start = board_.start(rank, lane);
      if (start > first || start == kNever) continue;
      const bool comes_first =
          start < first || board_.priority(rank, lane) < board_.priority(rank, best);
      if (!comes_first || !board_.admits(rank, lane)) continue;
      best = lane;
      first = start;
    }
    if constexpr (requires { board_.filler(rank, first); })
      if (first > board_.clock(rank))
        if (const int filler = board_.filler(rank, first); filler != kNoLane) {
          best = filler;
          first = board_.clock(rank);
        }
    next_[static_cast<std::size_t>(rank)] = best;
    earliest_.set(static_cast<std::size_t>(rank), first);
  }

  Board& board_;
  std::vector<int> next_;  // by rank
  Earliest earliest_;
};

}  // namespace millrace::plan
