// Cutting a sequence into slices for the sequence pipelines.
#pragma once

#include <functional>
#include <vector>

namespace millrace {

/// A sequence cut into slices.
struct Slicing {
  std::vector<int> lengths;  ///< tokens per slice, first slice first; they sum to the sequence
  double latency = 0;        ///< sum of the slices' latencies + (p - 1) x the largest of them
};

/// The slices that minimise the latency of one sequence through p ranks.
///
/// `latency(length, context)` is the time of one rank for `length` tokens after `context` tokens;
/// it must be finite and >= 0. For every bound T on a slice's latency:
///   f(0) = 0, f(x) = min over length <= x, latency(length, x - length) <= T of
///          f(x - length) + latency(length, x - length)
/// and the result is the T with the smallest f(tokens) + (p - 1) T, ties to the smaller T. Slice
/// lengths are multiples of `step`. Cost: O((tokens/step)^2) calls of `latency` and at most
/// O((tokens/step)^4) time; the scan stops when (p - 1) T alone exceeds the best.
/// Throws InvalidArgument unless p, tokens and step are at least 1 and step divides tokens.
/// Source: Li et al. 2021 (TeraPipe), section 3.3.
[[nodiscard]] Slicing terapipe_slices(const std::function<double(int length, int context)>& latency,
                                      int tokens,
                                      int ranks,
                                      int step = 1);

}  // namespace millrace
