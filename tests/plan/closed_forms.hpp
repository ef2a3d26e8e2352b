// The published closed forms: bubbles and peaks of schedules as functions of their shape. Equal
// stages, no latency. Inside the stated domain each is exact; tests compare it with the simulator.
// Bubbles of the span hold for the smallest over all starts and for every op as soon as possible.
#pragma once

#include <algorithm>

namespace millrace::closed_forms {

/// Times of one full stage of a p-stage model: F, I (input half), W (weight half); B = I + W.
/// Thread-safety: immutable, share freely.
struct StageTimes {
  double forward = 1;
  double input = 1;
  double weight = 1;
};

/// (p-1)(F+B)/(v q): makespan and span bubble of gpipe, 1f1b, eager-1f1b (v = q = 1, every m), bfs
/// and interleaved (m >= p), seq-1f1b and terapipe (every m), seqpipe (m >= p), seq-vpp and
/// seq-smart-vpp (q divides p). A lower bound elsewhere. Source: Narayanan et al. 2021,
/// section 2.2.
[[nodiscard]] constexpr double fused_bubble(int p, int v, int q, StageTimes t) {
  return (p - 1) * (t.forward + t.input + t.weight) / (v * q);
}

/// (p-1)F/v: makespan bubble of forward, for m >= p; a lower bound for fewer.
[[nodiscard]] constexpr double forward_only(int p, int v, double forward) {
  return (p - 1) * forward / v;
}

/// (p-1)(F+I-W)/v: makespan bubble of zb-h1 (v = 1) and interleaved-zb, for m >= p and W <= min(F,
/// I); a lower bound elsewhere. Source: Qi et al. 2023, table 1.
[[nodiscard]] constexpr double zero_bubble_1p(int p, int v, StageTimes t) {
  return (p - 1) * (t.forward + t.input - t.weight) / v;
}

/// (p-1) max(0, F+I-2W): span bubble of zb-h2 for m >= 2p-1, W <= F and 2W <= F+I; a lower
/// bound elsewhere. The makespan bubble is at least (p-1)F. Source: Qi et al. 2023, table 1.
[[nodiscard]] constexpr double zb_h2_span(int p, StageTimes t) {
  return (p - 1) * std::max(0.0, t.forward + t.input - 2 * t.weight);
}

/// max(p, m-1) for p <= m < 2p-1, else min(m, 2p-1): what zb-h2 holds on its fullest rank.
[[nodiscard]] constexpr int zb_h2_peak(int p, int m) {
  return m < p || m >= 2 * p - 1 ? std::min(m, 2 * p - 1) : std::max(p, m - 1);
}

/// (p-1)(max(F,I)-W): span bubble of zb-v for m >= 2p-1, W <= F <= I; at F > I an upper bound.
/// Source: Qi et al. 2023.
[[nodiscard]] constexpr double zb_v_span(int p, StageTimes t) {
  return (p - 1) * (std::max(t.forward, t.input) - t.weight);
}

/// max(span bubble, (p-1)F/2): makespan bubble of zb-v for m >= 2p-1, F = I, W <= F.
[[nodiscard]] constexpr double zb_v_makespan(int p, StageTimes t) {
  return std::max(zb_v_span(p, t), (p - 1) * t.forward / 2);
}

/// (p-1)(F+I-W)/2: makespan bubble of dualpipe-v, halves of a pair one by one, for F = I, W <= F.
[[nodiscard]] constexpr double dualpipe_v(int p, StageTimes t) {
  return (p - 1) * (t.forward + t.input - t.weight) / 2;
}

/// (p-1)(FB+B-3W)/2: makespan bubble of dualpipe-v with pairs as one op of time FB = F+B, for F =
/// I, W <= F; no bound elsewhere. Source: the DualPipe project, in chunk times there.
[[nodiscard]] constexpr double dualpipe_v_atomic(int p, StageTimes t) {
  return (p - 1) * (t.forward + 2 * t.input - t.weight) / 2;
}

/// (p/2-1)(F+I-W): makespan bubble of dualpipe, halves one by one, for F = I, W <= F.
[[nodiscard]] constexpr double dualpipe(int p, StageTimes t) {
  const int pairs = p / 2;
  return (pairs - 1) * (t.forward + t.input - t.weight);
}

/// (p/2-1)(FB+B-3W): makespan bubble of dualpipe with pairs as one op of time FB = F+B, for F = I,
/// W <= F; no bound elsewhere. Source: DeepSeek-AI 2024.
[[nodiscard]] constexpr double dualpipe_atomic(int p, StageTimes t) {
  const int pairs = p / 2;
  return (pairs - 1) * (t.forward + 2 * t.input - t.weight);
}

/// (3p-7)F/2: makespan and span bubble of v-half for even p >= 4, m >= 2p-1 and F = I = W; a lower
/// bound for odd p and for fewer. Source: Qi et al. 2024.
[[nodiscard]] constexpr double v_half(int p, double forward) {
  return (3 * p - 7) * forward / 2;
}

/// (m/p + 1)(p-2)F: makespan bubble of chimera at B = 2F. Source: Li and Hoefler 2021.
[[nodiscard]] constexpr double chimera(int p, int m, double forward) {
  const int rounds = m / p;
  return (rounds + 1) * (p - 2) * forward;
}

/// (m/p + 1)(p-2)F/2: makespan bubble of bitpipe at B = 2F. Source: Wu et al. 2024, by simulation.
[[nodiscard]] constexpr double bitpipe(int p, int m, double forward) {
  return chimera(p, m, forward) / 2;
}

/// 2(p-1)F/w: makespan bubble of wave at F = I = W and m = p.
[[nodiscard]] constexpr double wave_of_ranks(int p, int waves, double forward) {
  return 2 * (p - 1) * forward / waves;
}

/// ((p-1)(F+I) + (v-1)(p-g)F)/v: makespan bubble of group-interleaved at F = I = W, g divides m,
/// m >= p. Source: derived for the building block of Wan et al. 2025.
[[nodiscard]] constexpr double group_interleaved(int p, int v, int g, double forward) {
  return (2 * (p - 1) + (v - 1) * (p - g)) * forward / v;
}

/// (p-1 + (v-1)(p-g) + max(0, 2p-1-3g))F/v: makespan bubble of grouped-zb at F = I = W, v >= 2, g
/// divides m, m >= p; an upper bound at v = 1. Source: derived here.
[[nodiscard]] constexpr double grouped_zb(int p, int v, int g, double forward) {
  return (p - 1 + (v - 1) * (p - g) + std::max(0, 2 * p - 1 - 3 * g)) * forward / v;
}

// Peaks count micro-batches of one full stage held from F until B or W.

/// min(p-r, m): 1f1b on rank r.
[[nodiscard]] constexpr int one_f_one_b_peak(int p, int m, int r) {
  return std::min(p - r, m);
}

/// min(2(p-r)-1, m): eager-1f1b on rank r.
[[nodiscard]] constexpr int eager_peak(int p, int m, int r) {
  return std::min(2 * (p - r) - 1, m);
}

/// min(((v-1)g + 2(p-1-r) + 1)/v, m): interleaved with groups of g on rank r, m >= p.
[[nodiscard]] constexpr double interleaved_peak(int p, int m, int v, int g, int r) {
  return std::min(((v - 1.0) * g + 2 * (p - 1 - r) + 1) / v, 1.0 * m);
}

/// ((v-1)g + p)/v on every rank, at most m: interleaved-zb with groups of g, and grouped-zb where g
/// divides m and m >= p. With v = 1: zb-h1's min(p, m).
[[nodiscard]] constexpr double split_loop_peak(int p, int v, int g) {
  return ((v - 1.0) * g + p) / v;
}

/// ((v-1)g + p-r)/v: group-interleaved on rank r, g divides m, m >= p.
[[nodiscard]] constexpr double group_interleaved_peak(int p, int v, int g, int r) {
  return ((v - 1.0) * g + p - r) / v;
}

/// What the peak of a schedule with slices depends on: p, m, v, q; c is the first cycle of
/// micro-batches (m for seq-1f1b), the bias b is 2 for seq-vpp and for seqpipe with v > 1, else 1.
struct Sliced {
  int p, m, v, q;
  int bias = 1;
  int cycle = 1;
};

/// ((p-1-r)b + (v-1)c q + q)/(v q), at most m: seq-1f1b, seqpipe, seq-vpp and seq-smart-vpp on
/// rank r.
[[nodiscard]] constexpr double sequence_peak(const Sliced& s, int r) {
  return std::min(s.m * s.v * s.q, (s.p - 1 - r) * s.bias + (s.v - 1) * s.cycle * s.q + s.q) /
         (1.0 * s.v * s.q);
}

/// p + 1 on every rank: dualpipe, in stages of either direction.
[[nodiscard]] constexpr int dualpipe_peak(int p) {
  return p + 1;
}

/// p + 1/2 on every rank: dualpipe-v.
[[nodiscard]] constexpr double dualpipe_v_peak(int p) {
  return p + 0.5;
}

/// p/2 + 1 + min(r, p-1-r): chimera on rank r.
[[nodiscard]] constexpr int chimera_peak(int p, int r) {
  return p / 2 + 1 + std::min(r, p - 1 - r);
}

/// (3p/2 + min(r, p-1-r) + 1)/2: bitpipe on rank r.
[[nodiscard]] constexpr double bitpipe_peak(int p, int r) {
  const int half = p / 2;
  return (3 * half + std::min(r, p - 1 - r) + 1) / 2.0;
}

/// (3p + max(1, r))/2: stp on rank r.
[[nodiscard]] constexpr double stp_peak(int p, int r) {
  return (3 * p + std::max(1, r)) / 2.0;
}

/// 6m + (p-1)(1+a) + (2p + p mod 2)a: makespan of stp where a pass of a chunk takes 1, and an F on
/// its own a more for its all-reduce; pairs hide that, and B hides it in its W. Source: by
/// simulation; the authors have (2p+1)a.
[[nodiscard]] constexpr double stp_braided(int p, int m, double a) {
  return 6 * m + (p - 1) * (1 + a) + (2 * p + p % 2) * a;
}

/// ((v-1)m + p-r)/v, at most m: bfs-balanced on rank r.
[[nodiscard]] constexpr double balanced_peak(int p, int m, int v, int r) {
  return std::min(((v - 1.0) * m + p - r) / v, 1.0 * m);
}

/// (p+2)/2 rounded down: v-half, m >= p; less for fewer.
[[nodiscard]] constexpr int v_half_peak(int p) {
  return (p + 2) / 2;
}

/// (p+4)/3 rounded down: v-min, m >= p; less for fewer.
[[nodiscard]] constexpr int v_min_peak(int p) {
  return (p + 4) / 3;
}

}  // namespace millrace::closed_forms
