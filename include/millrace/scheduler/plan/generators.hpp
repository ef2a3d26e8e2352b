// The catalogue of schedules: every published schedule under the name the field uses.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/scheduler/plan/program.hpp"

namespace millrace {

/// Order of the micro-batches in a backward phase that runs after all forwards.
enum class BackwardOrder : std::uint8_t { Fifo, Lifo };

/// What a generator may be asked for. Unset options take the schedule's own default; an option that
/// a schedule does not have is refused in one sentence.
struct ScheduleOptions {
  int ranks = 4;                   ///< p
  int micro_batches = 8;           ///< m
  std::optional<int> chunks = {};  ///< v
  std::optional<int> slices = {};  ///< q
  std::optional<int> group = {};   ///< g
  std::optional<int> waves = {};   ///< w, of the wave schedule: v = 2 w
  std::optional<BackwardOrder> order =
      {};  ///< of gpipe and bfs; fifo accumulates in ascending order
  std::optional<double> memory_limit = {};  ///< in the units of memory_forward
  /// Costs of one full stage of a p-stage model, for the schedules that are searched with times.
  double forward = 1, input = 1, weight = 1, latency = 0;
  double memory_forward = 1, memory_input = 0, memory_weight = -1;
  /// Costs of each stage, where they differ; for the entries with `staged`, which then keep the
  /// limit on every rank, in the units of these costs. The others take the means above, and
  /// `latency` stays in units.
  std::optional<Cost> stage_costs = {};
};

/// One row of `millrace list`.
struct ScheduleEntry {
  std::string_view name;    ///< as on the command line: "1f1b"
  std::string_view title;   ///< "1F1B (PipeDream-flush, DAPPLE)"
  std::string_view needs;   ///< which p, m, v, q, g have a meaning
  std::string_view bubble;  ///< closed form, equal stages, no latency
  std::string_view peak;    ///< peak activation, closed form
  std::string_view source;  ///< paper or project
  bool chunked = false;     ///< takes chunks (default: default_chunks)
  bool sliced = false;      ///< takes slices (default 2)
  bool grouped = false;     ///< takes a group size
  bool waved = false;       ///< takes a number of waves (default 1)
  bool ordered = false;     ///< takes a backward order (default fifo)
  bool limited = false;     ///< takes a memory limit
  bool timed = false;       ///< the order depends on the costs in the options
  bool staged = false;      ///< takes the costs of each stage
  int default_chunks = 2;
  /// Makes the program; `millrace::generate` checks the options against the flags above first.
  Program (*generate)(const ScheduleOptions&) = nullptr;
};

/// All schedules, in the order of scheduler/README.md.
[[nodiscard]] std::span<const ScheduleEntry> schedules();

/// The entry called `name`. Throws InvalidArgument naming the nearest known name.
[[nodiscard]] const ScheduleEntry& find_schedule(std::string_view name);

/// Generates the compute-only program of a schedule. Throws InvalidArgument, with the option, its
/// value and what works, where the schedule has no meaning.
[[nodiscard]] Program generate(std::string_view name, const ScheduleOptions& options);

}  // namespace millrace
