// Cost: how long each op takes, what a message costs, and what memory each op holds.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "millrace/scheduler/plan/program.hpp"
#include "millrace/scheduler/plan/shape.hpp"

namespace millrace {

/// Ticks of overlapped pairs that run as one (atomic), by the passes F, B, I, W of their halves in
/// either order. A pair without a time runs one half after the other, each as soon as it can.
struct PairTimes {
  static constexpr std::size_t kPasses = 4;
  std::array<double, kPasses * kPasses> ticks;  ///< below 0: one after the other

  constexpr PairTimes() : ticks() { ticks.fill(-1); }
  constexpr void set(Op one, Op other, double time) {
    ticks[index(one, other)] = ticks[index(other, one)] = time;
  }
  /// Below 0 for a pair without a time.
  [[nodiscard]] constexpr double of(Op one, Op other) const {
    const Op last = Op::BackwardWeight;
    return one > last || other > last ? -1 : ticks[index(one, other)];
  }
  /// Of the pair that begins at a place of a rank's list; below 0 where none does.
  [[nodiscard]] double at(std::span<const Action> list, std::size_t place) const {
    const bool leads = list[place].with_next && place + 1 < list.size();
    return leads ? of(list[place].op, list[place + 1].op) : -1;
  }
  [[nodiscard]] bool any() const {
    return std::ranges::any_of(ticks, [](double time) { return time >= 0; });
  }

 private:
  static constexpr std::size_t index(Op one, Op other) {
    return static_cast<std::size_t>(one) * kPasses + static_cast<std::size_t>(other);
  }
};

/// Times and memory of a shape's actions, per stage (and slice).
///
/// All times are doubles in **ticks**. When times are given as integers, `of_full_stage` scales
/// them so that every per-chunk, per-slice time is an integer number of ticks; sums and maxima of
/// doubles below 2^53 are then exact, and `ticks_per_unit` converts back. Thread-safety: immutable
/// once filled, share freely.
struct Cost {
  /// Ticks of one op of one stage for each slice: index [stage * slices + slice].
  std::vector<double> forward, backward_input, backward_weight, recompute;
  /// Ticks of a full backward; empty means I + W.
  std::vector<double> backward;
  PairTimes pair = {};   ///< ticks of overlapped pairs that run as one
  double optimizer = 0;  ///< ticks of a rank's optimizer step
  /// Ticks of a step outside its passes, where the program has no optimizer step: norm, clipping,
  /// update, what begins the next step.
  double after_passes = 0;
  double latency =
      0;  ///< ticks a message needs after the producer ended, on every rank-crossing edge
  std::vector<double> link_latency;         ///< p x p, overrides latency when not empty
  double bytes_per_tick = 0;                ///< bandwidth; 0 = infinite
  std::vector<double> link_bytes_per_tick;  ///< p x p, overrides bytes_per_tick
  double message_bytes = 0;  ///< bytes of one message of a full micro-batch (a slice: 1/q)
  std::vector<double> boundary_bytes;  ///< by stage but the last: of messages to and from stages
                                       ///< that it feeds; overrides message_bytes when not empty
  bool contention = false;             ///< messages of one directed link follow one another
  std::vector<double> rank_speed;      ///< p factors: an op takes ticks / speed; empty = all 1
  /// Processors that the ranks share, where they are fewer than the ranks; 0: one per rank. Then at
  /// most that many passes (and optimizer steps) run at a time: one that has begun runs to its end,
  /// a free processor takes the one that could have begun first, of several that of the lowest
  /// rank.
  int cores = 0;
  /// Copies of the whole pipeline that are trained side by side, d. Of several, each stage's
  /// gradients are added over the copies: the sum starts when the stage's last B or W has ended,
  /// runs beside whatever passes follow, and the stage's REDUCE_GRAD waits for its end. The sums of
  /// a rank's stages follow one another on its link to the other copies, in the order in which they
  /// could start: a connection gives its messages in order. That link has the latency and bandwidth
  /// of `link_*` from the rank to itself, where those are given. Then the replicas of a stage give
  /// one another what they have, each when its own rank comes to its REDUCE_GRAD and its sum is
  /// there: all gradients of the stage, over the link between their ranks, whose messages of
  /// micro-batches they do not hold up. A REDUCE_GRAD waits for those of the other ranks too, as it
  /// does for those of tied stages, which are said to have no bytes. Replicas of one pipeline give
  /// one another theirs in the same way where gradient_bytes says that there are any.
  int data_parallel = 1;
  std::vector<double> gradient_bytes = {};  ///< of every stage; empty means 0
  /// Whether gradients of micro-batches are added by a tree (partial_sums.hpp): then the sums that
  /// wait in it count as memory, each as large as the stage's gradients.
  bool tree_of_sums = false;
  /// Passes of the program in one step, which add their gradients up: every rank begins the next
  /// one when all have ended the one before. Sums over copies follow the last pass alone, which is
  /// the one that is timed.
  int passes = 1;
  double ticks_per_unit = 1;  ///< ticks in one unit of what the user gave

  /// Change of memory at the start of F (a_F) and the most that F (or its recompute) adds while it
  /// runs (`forward_peak`, where above a_F), inside I (g_I appears before a_I goes:
  /// `input_peak`), at the end of I (g_I - a_I), and at the end of W (the rest). B holds inside
  /// what its I and W do. The peak of a rank, in every figure and limit, is the most that it holds
  /// at any moment, also inside a pass. Per stage, of a whole micro-batch (a slice takes 1/q);
  /// bytes or any unit. Empty means 0.
  std::vector<double> memory_forward, memory_forward_peak, memory_input_peak, memory_input;
  std::vector<double> memory_weight;
  /// What F keeps where a recompute follows: the stage's input. The recompute adds the rest of a_F.
  /// Empty means 0.
  std::vector<double> memory_boundary;

  int slices = 1;

  [[nodiscard]] std::size_t at(const Action& action) const {
    return action.stage.index() * static_cast<std::size_t>(slices) + action.slice.index();
  }

  /// Ticks of a compute action or optimizer step (0 for the others), without rank speed. Recompute
  /// without a cost of its own takes as long as F.
  [[nodiscard]] double ticks(const Action& action) const;

  /// Latency of the link between two ranks of a pipeline with `ranks` ranks, in ticks.
  [[nodiscard]] double delay(Rank source, Rank destination, int ranks) const;
  /// Ticks one message (a slice's share of its bytes) between `feeding` and a stage that it feeds
  /// occupies the link.
  [[nodiscard]] double transfer(Rank source,
                                Rank destination,
                                int ranks,
                                Stage feeding = Stage{0}) const;

  /// Ticks that the sum of a stage's gradients over d copies keeps the link of its rank busy: of
  /// its bytes 2 (d - 1) / d leave every copy and as many arrive. Cost: O(1).
  [[nodiscard]] double sum_transfer(Stage stage, Rank rank, int ranks) const;
  /// Ticks of such a sum's rounds, two latencies: a part of every copy's gradients goes to each
  /// other copy, which gives back the sum. They keep no link busy.
  [[nodiscard]] double sum_delay(Rank rank, int ranks) const;

  /// Whether gradients of several ranks are added behind passes: over data-parallel replicas, or
  /// between replicas of a stage. Cost: O(stages).
  [[nodiscard]] bool adds_gradients(const Shape& shape) const;
  /// Ticks that the gradients of a stage need from one of its replicas to another, d copies having
  /// added theirs; 0 on one rank. Cost: O(1).
  [[nodiscard]] double replica_transfer(Stage stage,
                                        Rank source,
                                        Rank destination,
                                        int ranks) const;

  /// Whether `ranks` ranks have to share processors.
  [[nodiscard]] bool shares_cores(int ranks) const { return cores > 0 && cores < ranks; }

  /// Throws InvalidArgument, naming the member, when a vector has the wrong length for `shape`, a
  /// time or a number of cores is negative or a speed is not positive, or there are fewer copies or
  /// passes than one.
  void require_fits(const Shape& shape) const;

  /// Costs of one full stage of a p-stage model: a stage of the shape takes p / S of it, a slice
  /// 1/q of that. With integer arguments every time is an exact integer number of ticks
  /// (ticks_per_unit = v q, v = S / p). Memory is 1 per full stage's micro-batch at F, kept until W
  /// (or B). Throws InvalidArgument when a count of the shape is below 1 or its placement names a
  /// rank that it does not have.
  static Cost of_full_stage(
      const Shape& shape, double forward, double input, double weight, double latency = 0);

  /// F = I = W = 1.
  static Cost unit(const Shape& shape) { return of_full_stage(shape, 1, 1, 1); }

 private:
  /// Bytes per tick of a link; 0: infinite.
  [[nodiscard]] double rate(Rank source, Rank destination, int ranks) const;
};

}  // namespace millrace
