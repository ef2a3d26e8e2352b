// The catalogue of schedules: every published schedule under the name the field uses.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/scheduler/plan/costs.hpp"
#include "millrace/scheduler/plan/parameters.hpp"
#include "millrace/scheduler/plan/program.hpp"

namespace millrace {

namespace generators {
struct Request;
}

/// One row of `millrace list`.
struct ScheduleEntry {
  std::string_view name;    ///< as on the command line: "1f1b"
  std::string_view title;   ///< "1F1B (PipeDream-flush, DAPPLE)"
  std::string_view needs;   ///< which p, m, v, q, g have a meaning
  std::string_view bubble;  ///< closed form, equal stages, no latency
  std::string_view peak;    ///< peak activation, closed form
  std::string_view source;  ///< paper or project
  ParameterSet own = {};    ///< parameters that it takes besides ranks and micro-batches
  bool timed = false;       ///< the order depends on the costs
  bool staged = false;      ///< takes the costs of each stage
  /// List scheduling within its own memory makes it shorter at many times: search and sweep begin
  /// with that order.
  bool relisted = false;
  int default_chunks = 2;        ///< where it takes chunks
  int own_chunks = 1;            ///< v of an entry that takes none, of one wave and one copy
  int replicas = 1;              ///< copies of the model
  bool slice_each_rank = false;  ///< where slices are not given, there are p
  /// Makes the program; `millrace::generate` checks the options against `own` first.
  Program (*generate)(const generators::Request&) = nullptr;

  /// Whether the parameter of that name has a meaning. Throws InvalidArgument for an unknown name.
  [[nodiscard]] constexpr bool takes(std::string_view parameter) const {
    return parameter == "ranks" || parameter == "micro_batches" || own.has(parameter);
  }
};

/// All schedules, in the order of scheduler/README.md.
[[nodiscard]] std::span<const ScheduleEntry> schedules();

/// The entry called `name`. Throws InvalidArgument naming the nearest known name.
[[nodiscard]] const ScheduleEntry& find_schedule(std::string_view name);

/// v of the programs that `entry` makes with these options, of one copy of the model.
[[nodiscard]] int chunks_of(const ScheduleEntry& entry, const ScheduleOptions& options);

/// Whether the options may set the parameter: the entry takes it, or the value says what the
/// schedule has anyway, such as two chunks of zb-v or one slice of 1f1b.
[[nodiscard]] bool agrees(const ScheduleEntry& entry,
                          const ScheduleOptions& options,
                          std::string_view parameter);

/// Generates the compute-only program of a schedule, for a model with these costs: entries with
/// `timed` read the mean stage, those with `staged` each stage. A number of chunks, or one slice,
/// may be given to a schedule that takes none where it is true. Throws InvalidArgument, with the
/// option, its value and what works, where the schedule has no meaning, and as cost_of does;
/// Stopped when `options.stop` returns true.
[[nodiscard]] Program generate(std::string_view name,
                               const ScheduleOptions& options,
                               const Costs& costs = {});

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
