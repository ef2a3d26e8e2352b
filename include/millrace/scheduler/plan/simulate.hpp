// simulate: when does every action start and end. Longest path through the graph with the costs of
// `Cost`; exact when the ticks are integers.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/scheduler/plan/graph.hpp"
#include "millrace/scheduler/plan/program.hpp"

namespace millrace {

/// One number of a result. JSON members, table columns, CSV columns and Python attributes are made
/// from the lists of these, so a new number needs its member, its computation and its row.
template <class Result>
struct ResultField {
  enum class Unit : std::uint8_t { Time, Share, MicroBatches, Memory };
  /// Where it is: in the result's own JSON and Python record, in a row of sweep, in a row of
  /// compare. PerPass: has no value for a step of several passes.
  enum In : std::uint8_t { Record = 1, Sweep = 2, Compare = 4, PerPass = 8 };

  std::string_view name;   ///< in JSON, CSV and Python
  std::string_view title;  ///< in tables
  Unit unit;
  std::uint8_t in;
  std::string_view help;
  double (*of)(const Result&);

  [[nodiscard]] bool is_in(In place) const { return (in & place) != 0; }
};

/// The numbers of Report, RankReport, Idle, SumReport, Spread and FoundSchedule (search.hpp).
template <class Result>
[[nodiscard]] std::span<const ResultField<Result>> result_fields();

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
  /// An action and what it waits for; `needs` stands on the rank of the next wait of the cycle, at
  /// its action or later.
  struct Wait {
    Rank rank;
    std::size_t position = 0;
    Action action;
    Rank needs_rank;
    Action needs;
  };

  std::vector<Wait> cycle;

  /// "rank 0 waits in 0B0 for 1B0 of rank 1; rank 1 waits in 1F3 for 0F3 of rank 0".
  [[nodiscard]] std::string message() const;
};

/// Runs the program's actions as early as their rank and producers allow.
///
/// Sends and receives take no time of their own, and reductions neither but where Cost has several
/// data-parallel replicas: then a REDUCE_GRAD lasts from when its rank reaches it until the sum
/// over the copies, which runs beside the passes (stage_sums), has ended, and those of other
/// replicas of the stage have come from their ranks; the rank stands in it. A
/// message leaves when its producer (its SEND, if the program has messages) has ended and arrives
/// after transfer and latency. A RECV only posts: it ends when the message is there, while its rank
/// continues until the action that uses the message. With Cost::pair an overlapped pair starts when
/// both halves can and takes that long; without it the halves run one after the other.
///
/// With Cost::cores below the number of ranks, passes wait for processors, first come first served,
/// as they do for oneTBB's threads. Times stay whole where ticks are. (Measured with a transformer
/// in four ranks on two cores, 1f1b, gpipe, zb-h1, interleaved and zb-v: passes take 1 to 4.5 %
/// more than this has; equal shares of the processors for all passes, which are fractions, differ
/// from it by at most 1 %, in three of the five away from what was measured.) The makespan is at
/// least that of a processor per rank and at least work / cores; without latencies it is at most
/// work / cores + (1 - 1 / cores) times the former (Graham 1969, doi:10.1137/0117039).
///
/// Cost: O(actions + edges), with shared processors times O(log ranks). Throws InvalidArgument when
/// `cost` does not fit the shape.
[[nodiscard]] std::variant<Timeline, Deadlock> simulate(const Graph& graph, const Cost& cost);

/// The program simulated with every pass as long as it is in `measured`, and all else as `cost` has
/// it: how long the measured run would have been had nothing come between its passes.
/// Cost: that of simulate. Throws InvalidArgument when cost or timeline belong to another program,
/// or an interval ends before it begins.
[[nodiscard]] std::variant<Timeline, Deadlock> simulate_as_measured(const Graph& graph,
                                                                    const Cost& cost,
                                                                    const Timeline& measured);

/// The sum of one stage's gradients over the data-parallel replicas, in ticks of a timeline.
/// Thread-safety: a value.
struct StageSum {
  Replica replica;
  Stage stage;
  Rank rank;
  double ready = 0;  ///< when the stage's last B or W ended
  Interval time;     ///< from when its rank's link was free for it to when the sum was there
  /// From when its rank gave it to the ranks of other replicas and of tied stages to when the last
  /// of them had it; where there are none, of no length.
  Interval given;
};

/// When the sums over Cost::data_parallel copies run beside a timeline's passes: those of every
/// replica of every stage with a REDUCE_GRAD behind its last B or W, by rank and then by start;
/// none for one copy.
/// Of a measured timeline it is what `cost` predicts from the ends of its passes. Throws
/// InvalidArgument when cost or timeline belong to another program. Cost: O(actions).
[[nodiscard]] std::vector<StageSum> stage_sums(const Graph& graph,
                                               const Cost& cost,
                                               const Timeline& timeline);

/// Idle time of one rank by cause; the parts sum to the idle time exactly (see DESIGN words).
struct Idle {
  double warm_up = 0;     ///< before the rank's first op
  double drain = 0;       ///< after its last
  double transfer = 0;    ///< in gaps: what vanishes with latency 0 and infinite bandwidth
  double imbalance = 0;   ///< in gaps: what vanishes with equal stage costs
  double processor = 0;   ///< in gaps: what vanishes with a processor per rank
  double dependency = 0;  ///< in gaps: the rest

  [[nodiscard]] double total() const {
    return warm_up + drain + transfer + imbalance + processor + dependency;
  }
  friend bool operator==(const Idle&, const Idle&) = default;
};

struct RankReport {
  double busy = 0;
  Idle idle;  ///< of the makespan: sums to makespan - busy
  /// Per step when steps overlap: sums to span - busy. Only gaps: a rank waits for other ranks or
  /// not at all, so warm_up and drain are 0.
  Idle idle_overlapped;
  double peak_activation = 0;  ///< micro-batches of a full stage held until W or B
  /// The most at any moment of Cost's memory model, also inside a pass: activations and the
  /// gradients kept for W, over all passes of the step. Weights, gradient sums, optimizer state and
  /// messages under way are not in it.
  double peak_bytes = 0;

  friend bool operator==(const RankReport&, const RankReport&) = default;
};

/// What gradient all-reduces take of a step.
struct SumReport {
  /// Sums of the rank that they keep busy longest, with latencies and what it gives other replicas.
  double longest = 0;
  double exposed = 0;  ///< of the makespan: what would vanish if sums took no time

  /// What of the longest runs beside passes.
  /// What is less than a billionth of it is rounding.
  [[nodiscard]] double hidden() const {
    return longest - exposed > 1e-9 * longest ? longest - exposed : 0;
  }
  friend bool operator==(const SumReport&, const SumReport&) = default;
};

/// Figures of one timeline, in the user's units (ticks / ticks_per_unit).
struct Report {
  /// First op of any rank to last op of any rank: one step with a barrier; of Cost::passes the last
  /// one. Gradient all-reduces, whose REDUCE_GRAD stands in a rank's list, are over by
  /// then.
  double makespan = 0;
  /// Makespan, of all passes, and what Cost::after_passes says comes beside them. The passes before
  /// the last have no sums over copies.
  double step = 0;
  /// What a step costs when steps overlap, every rank beginning its next step when it has ended
  /// this one: the smallest T at which the order runs, with `cost` and any starts, so that no rank
  /// needs longer than T from its first op to its last. It is the maximum cycle ratio of the
  /// order with an edge from each rank's last op to its first: a cycle of paths of c ticks through
  /// k such edges allows no less than c / k. A fraction where k > 1; the double is the nearest one
  /// when the ticks are integers, so equal spans compare equal. With shared processors the larger
  /// of that of a processor per rank and of work / cores, which no step can go below.
  double span = 0;
  /// What papers print as the span: the largest last end - first start of a rank in the timeline,
  /// where every op runs as soon as possible. At least the span when the timeline is simulated and
  /// ends without reductions.
  double span_asap = 0;
  double bubble_makespan = 0;  ///< makespan - busiest rank's busy time
  double bubble_span = 0;      ///< span - busiest rank's busy time
  double critical_path = 0;    ///< from start to end of the chain that critical_path() names
  SumReport sums;              ///< zeros for one copy of the pipeline
  std::vector<RankReport> ranks;

  [[nodiscard]] double bubble_makespan_ratio() const {
    return makespan == 0 ? 0 : bubble_makespan / makespan;
  }
  [[nodiscard]] double bubble_span_ratio() const { return span == 0 ? 0 : bubble_span / span; }

  /// The largest of a member over the ranks.
  [[nodiscard]] double largest(double RankReport::*member) const;

  friend bool operator==(const Report&, const Report&) = default;
};

/// Evaluates a timeline (simulated or measured) of `graph.program()`.
///
/// Work is compute and the optimizer step; the first and last op of a rank are its first and last
/// work. Gaps between them, and the idle time of overlapping steps, are explained by simulating
/// with a processor per rank, then with free links, then with every stage as slow as the mean:
/// processor = what the first takes away, transfer and imbalance = what the others take away beyond
/// that, dependency = the rest. With a measured timeline the span is what `cost` predicts.
/// Cost: O(actions), up to three simulations more when there are shared processors, links or
/// unequal stages, and a few for the span where the longest rank of the timeline is not held up by
/// itself. Throws InvalidArgument when cost or timeline belong to another program.
[[nodiscard]] Report report(const Graph& graph, const Cost& cost, const Timeline& timeline);

/// The chain of actions that determines the makespan, first to last: each was released by the one
/// before it, on its rank or through a message; with contention by the action whose message was
/// first in the queue that its own message stood in, with shared processors by the pass whose end
/// made one free. Of several, one that follows ranks where it can. Throws InvalidArgument when cost
/// or timeline belong to another program. Cost: O(length), O(actions) with contention, O(actions
/// log actions) with shared processors.
[[nodiscard]] std::vector<Node> critical_path(const Graph& graph,
                                              const Cost& cost,
                                              const Timeline& timeline);

/// A rank's memory from `time` on (in units of the timeline), until the next step.
struct MemoryStep {
  double time = 0;
  double bytes = 0;

  friend bool operator==(const MemoryStep&, const MemoryStep&) = default;
};

/// Memory of every rank over time under Cost's memory model, the transient peak inside I included.
/// Before the first step it is 0. Throws InvalidArgument when `cost` does not fit the shape.
[[nodiscard]] std::vector<std::vector<MemoryStep>> memory_over_time(const Graph& graph,
                                                                    const Cost& cost,
                                                                    const Timeline& timeline);

/// Whether a step begins on every rank only after all ranks have ended the one before (a global
/// norm or overflow check needs that), or on each rank as soon as that rank has.
enum class Barrier : std::uint8_t { No, Yes };

/// Several steps of one program in a row.
struct Iterations {
  std::vector<double> ends;  ///< of each step: when its last rank ended, in units
  double per_step = 0;       ///< the last step's end minus the one before: the steady state
};

/// Runs the program `steps` times. Without a barrier ranks overlap steps like parallelograms: over
/// many steps the ends grow by Report::span per step (exactly so after a while; where a cycle of k
/// ranks decides the span, the growth repeats every k steps); with one it is the makespan.
/// Cost: `steps` simulations. Throws InvalidArgument when steps is below 1, the cost does not fit,
/// the program deadlocks, or steps that overlap are to share processors.
[[nodiscard]] Iterations simulate_iterations(const Graph& graph,
                                             const Cost& cost,
                                             int steps,
                                             Barrier barrier);

/// Random run times: every op takes its ticks times a factor uniform in [1 - amount, 1 + amount).
struct Jitter {
  double amount = 0.1;
  int runs = 100;
  std::uint64_t seed = 1;
};

/// Makespans of jittered runs, in units. Percentiles are of nearest rank.
struct Spread {
  double mean = 0;
  double least = 0;
  double p05 = 0;
  double median = 0;
  double p95 = 0;
  double p99 = 0;
  double most = 0;
};

/// Simulates `jitter.runs` times; the factors are a pure function of seed, run, rank and position.
/// Cost: `runs` simulations. Throws InvalidArgument when runs is below 1, amount is outside [0, 1],
/// the cost does not fit or the program deadlocks.
[[nodiscard]] Spread simulate_jitter(const Graph& graph, const Cost& cost, const Jitter& jitter);

template <>
std::span<const ResultField<Report>> result_fields();
template <>
std::span<const ResultField<RankReport>> result_fields();
template <>
std::span<const ResultField<Idle>> result_fields();
template <>
std::span<const ResultField<SumReport>> result_fields();
template <>
std::span<const ResultField<Spread>> result_fields();

}  // namespace millrace
