// The families of generators: the phase programs, the V schedules, the searched ones, those of two
// replicas and the wave.
#pragma once

#include "plan/schedules/options.hpp"

namespace millrace::generators {

/// How the micro-batches are cut into consecutive groups. Inside a group the chunks follow one
/// another; inside a chunk the group's micro-batches.
enum class Grouping : std::uint8_t {
  Whole,       ///< one group of m
  Rounds,      ///< g = smallest g >= p with m mod g = 0 or >= p (m < p: g = m), or the option
  Small,       ///< g in [ceil(p/2), p], or the option
  CyclesOfP,   ///< max(1, m / p) cycles, as equal as possible
  CyclesOfPq,  ///< m / (p / q) cycles, as equal as possible
  FullCycles,  ///< the same, refused when a cycle has fewer than p slices
  One,         ///< one micro-batch, of at least p slices
};

inline constexpr int kFused = -1;  ///< full backwards, no weight-gradient halves

/// One row of the table. On rank r, with g the first group and e = min(p-1-r, more):
///   warm = every forward, or slope (p-1-r) + e + (v-1) g q + q - 1
///   lag  = lag_per_rank * r + more - e weight-gradient halves after the input-gradient halves, or
///          fused
struct PhaseRow {
  Grouping grouping = Grouping::Whole;
  int slope = 1;
  int lag_per_rank = kFused;
  bool forwards_first = false;  ///< warm = every forward
  bool forward_only = false;    ///< no backward is owed
  bool pairs = false;  ///< one more warm-up forward, then every F is a pair with the B after it
  int more = 0;        ///< micro-batches that every rank holds on top
};

/// The phase program of `row`: warm-up forwards, then forward, backward (and, when split, a weight
/// half once more than `lag` are owed), then what is left. Cost: O(actions).
[[nodiscard]] Program phase_program(const PhaseRow& row, const Request& options);

/// ZBV as written out by its authors and by PyTorch; any m, best from 2p-1.
[[nodiscard]] Program zb_v(const Request& options);

/// DualPipeV, overlapped pairs marked; m >= 2p.
[[nodiscard]] Program dualpipe_v(const Request& options);

/// STP: passes braided in pairs, so that one computes while the other sums over tensor-parallel
/// ranks; m >= 3p-1.
[[nodiscard]] Program stp(const Request& options);

/// DualPipe: DualPipeV of half the ranks and micro-batches played twice, mirrored; p even, m even
/// and >= 2p.
[[nodiscard]] Program dualpipe(const Request& options);

/// Chimera: two replicas, down and up, units of p micro-batches; p even, m a multiple of p.
[[nodiscard]] Program chimera(const Request& options);

/// BitPipe: two replicas, each a V, mirrored; p even, m a multiple of p.
[[nodiscard]] Program bitpipe(const Request& options);

/// About half of 1F1B's activation memory: peak (p+2)/2, rounded down.
[[nodiscard]] Program v_half(const Request& options);

/// About a third of 1F1B's activation memory: peak (p+4)/3, rounded down.
[[nodiscard]] Program v_min(const Request& options);

/// 1F1B over the V placement, its backwards whole: about two thirds of 1F1B's memory, the same on
/// every rank.
[[nodiscard]] Program one_f_one_b_v(const Request& options);

/// The best building block whose peak is within the limit (default: p micro-batches of a full
/// stage), by span with the given costs. Cost: O(p m) for each of a few hundred blocks; of the
/// first few where the shortest span is known beforehand (equal passes, free links, m >= 2p).
[[nodiscard]] Program v_zb(const Request& options);

/// Hanayo's wave pipeline with `waves` waves, v = 2 waves chunks. Cost: O(m p v (v + log)) time.
[[nodiscard]] Program wave(const Request& options);

/// ZB auto: one pass over the micro-batches with three on/off rules, the best of the eight
/// combinations by span. The limit is in the units of memory_forward (default: p of them).
/// Cost: O(p m) time and memory per combination.
[[nodiscard]] Program zb_auto(const Request& options);

/// ZBV auto: four combinations of two filling rules, each run again with the bubbles it ended with
/// approved in advance; the best by its largest rank bubble. The limit is in the units of
/// memory_forward (default: p of them). Cost: O(p m) time and memory per combination.
[[nodiscard]] Program zb_v_auto(const Request& options);

}  // namespace millrace::generators
