// simulate: when does every action start and end. Longest path through the graph with the costs of
// `Cost`; exact when the ticks are integers.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/scheduler/plan/graph.hpp"
#include "millrace/scheduler/plan/program.hpp"

namespace millrace {

struct Interval {
  double start = 0;
  double end = 0;

  friend bool operator==(const Interval&, const Interval&) = default;
};

/// Start and end of every action, aligned with a program: ranks[r][i] belongs to
/// program.ranks[r][i]. Simulated and measured timelines are this same type, so one command
/// compares them. Thread-safety: immutable, share freely.
struct Timeline {
  std::vector<std::vector<Interval>> ranks;
  double ticks_per_unit = 1;  ///< a measured timeline is in seconds with 1
  friend bool operator==(const Timeline&, const Timeline&) = default;
};

/// The program cannot proceed: a shortest cycle of actions each of which waits for the next.
struct Deadlock {
  struct Wait {
    Rank rank;
    std::size_t position = 0;
    Action action;
  };

  std::vector<Wait> cycle;

  /// "rank 2 waits in 5RECV_F3 for rank 1, which waits ..." in one sentence.
  [[nodiscard]] std::string sentence() const;
};

/// Runs the program's actions as early as their rank and producers allow.
/// Cost: O(actions + edges). Throws InvalidArgument when `cost` does not fit the shape.
[[nodiscard]] std::variant<Timeline, Deadlock> simulate(const Graph& graph, const Cost& cost);

/// Idle time of one rank by cause; the parts sum to the idle time exactly (see DESIGN words).
struct Idle {
  double warm_up = 0;     ///< before the rank's first op
  double drain = 0;       ///< after its last
  double transfer = 0;    ///< in gaps: what vanishes with latency 0 and infinite bandwidth
  double imbalance = 0;   ///< in gaps: what vanishes with equal stage costs
  double dependency = 0;  ///< in gaps: the rest

  [[nodiscard]] double total() const { return warm_up + drain + transfer + imbalance + dependency; }
};

struct RankReport {
  double busy = 0;
  Idle idle;
  double span = 0;             ///< last end - first start
  double peak_activation = 0;  ///< micro-batches of a full stage held until W or B
  double peak_bytes = 0;       ///< of Cost's memory model, the transient peak inside I included
};

/// Figures of one timeline, in the user's units (ticks / ticks_per_unit).
struct Report {
  double makespan = 0;  ///< first op of any rank to last op of any rank: one step with a barrier
  double span = 0;  ///< largest rank span: one step when steps overlap (a prediction while steps
                    ///< end with a barrier)
  double bubble_makespan = 0;  ///< makespan - busiest rank's busy time
  double bubble_span = 0;      ///< span - busiest rank's busy time
  double critical_path = 0;    ///< length of the longest chain of actions and messages
  std::vector<RankReport> ranks;

  [[nodiscard]] double bubble_makespan_ratio() const {
    return makespan == 0 ? 0 : bubble_makespan / makespan;
  }
  [[nodiscard]] double bubble_span_ratio() const { return span == 0 ? 0 : bubble_span / span; }
};

/// Evaluates a timeline (simulated or measured) of `graph.program()`.
[[nodiscard]] Report report(const Graph& graph, const Cost& cost, const Timeline& timeline);

}  // namespace millrace
