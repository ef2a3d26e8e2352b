// sweep: the figures of many schedules at many counts, costs and memory limits, as rows of one
// table. For plots and for planning: which schedule, how many micro-batches, what a limit costs.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/scheduler/plan/costs.hpp"
#include "millrace/scheduler/plan/parameters.hpp"
#include "millrace/scheduler/plan/program.hpp"
#include "millrace/scheduler/plan/simulate.hpp"

namespace millrace {

/// What is combined with what: every schedule with every p, m, v, q, number of copies, costs and
/// limit.
/// Thread-safety: immutable, share freely.
struct SweepSpace {
  std::vector<std::string> schedules;    ///< names of the catalogue, or of `plans`
  std::vector<int> ranks = {4};          ///< p
  std::vector<int> micro_batches = {8};  ///< m
  std::vector<int> chunks = {};          ///< v of those that take it; empty: their default
  std::vector<int> slices = {};          ///< q, likewise
  std::vector<int> data_parallel = {1};  ///< data-parallel replicas
  std::vector<Costs> costs = {{}};       ///< data_parallel is that above
  std::vector<std::optional<MemoryLimit>> limits = {std::nullopt};  ///< none: not limited
  /// Programs that the list may name too. Each has its own p, m, v and q, not those above.
  std::map<std::string, std::shared_ptr<const Program>> plans = {};
};

/// One combination; p, m, v, q as given.
/// Thread-safety: immutable, share freely.
struct SweepPoint {
  std::string schedule;
  int ranks = 4;
  int micro_batches = 8;
  std::optional<int> chunks = {};  ///< unset: the schedule does not take it, or its default
  std::optional<int> slices = {};  ///< likewise
  Costs costs = {};
  std::optional<double> memory_limit = {};      ///< in the unit of memory_forward
  std::shared_ptr<const Program> program = {};  ///< instead of one that `schedule` generates
  /// The order that relist_within_own_memory makes of the schedule: its row says "v-min + relist".
  bool relisted = false;
};

/// A point and its metrics in the units of its costs, or why it has none.
struct SweepRow {
  SweepPoint point = {};              ///< v and q as they are, where there is a report
  std::optional<Report> report = {};  ///< none: the combination has no meaning
  bool same_bits = false;             ///< the accumulation order is ascending
  bool valid = false;                 ///< no rule is broken, and the memory limit is kept
  std::string reason = {};  ///< why there is no report or the row is not valid; else empty
};

/// The combinations, schedules outermost, then p, m, v, q, copies, costs, limits. A schedule that
/// takes no v (q) has one point for all of them, a plan one for all p, m, v and q. Throws
/// InvalidArgument for an unknown schedule, a count below 1, an empty list, and a v (q) that no
/// schedule of the list takes.
[[nodiscard]] std::vector<SweepPoint> sweep_points(const SweepSpace& space);

/// Generates, simulates and verifies one point. Never throws for a combination without meaning;
/// Stopped when `stop` says so. Cost: that of the generator, and O(actions).
[[nodiscard]] SweepRow evaluate(const SweepPoint& point, const Stop& stop = {});

/// Evaluates all points on `threads` threads (at least 1) and gives `row` one after another, in the
/// order of the points whatever the number of threads; never two calls at a time. What `row` or an
/// evaluation throws ends the sweep and is rethrown; so does Stopped when `stop`, which every
/// thread asks, says so. The rows are a pure function of the points.
void sweep(const std::vector<SweepPoint>& points,
           int threads,
           const std::function<void(const SweepRow&)>& row,
           const Stop& stop = {});

/// The names of the columns: schedule, p, m, v, q, d (copies), accumulate (passes), the costs and
/// their file, the limit, the figures, reason.
[[nodiscard]] std::string sweep_csv_head();

/// The row as a line of CSV (RFC 4180). A figure that is not there is an empty cell, as is the span
/// of several passes.
[[nodiscard]] std::string sweep_csv(const SweepRow& row);

/// The row as one JSON object on one line, with the columns' names as keys; null for what is not
/// there.
[[nodiscard]] std::string sweep_json(const SweepRow& row);

/// Cells as a line of CSV: joined by commas, quoted where they hold a comma, quote or newline.
[[nodiscard]] std::string csv_line(const std::vector<std::string>& cells);

}  // namespace millrace
