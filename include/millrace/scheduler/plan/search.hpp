// search: the best schedule for given counts, costs and memory limit, with the gap to what no
// schedule can beat. A portfolio of the whole catalogue, list scheduling under the limit,
// relisting, a local search, and for small cases the exact solver; every result is an ordinary
// program.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/scheduler/plan/optimum.hpp"
#include "millrace/scheduler/plan/parameters.hpp"
#include "millrace/scheduler/plan/program.hpp"
#include "millrace/scheduler/plan/simulate.hpp"

namespace millrace {

struct Costs;

/// How far a search is.
struct SearchProgress {
  std::string at;              ///< what comes next: "wave w=2", "local search"
  std::size_t candidates = 0;  ///< of the portfolio
  std::size_t timed = 0;       ///< of them so far
  double best = std::numeric_limits<double>::infinity();  ///< objective, in the user's units
};

struct SearchOptions {
  int ranks = 4;                   ///< p
  int micro_batches = 8;           ///< m
  std::optional<int> chunks = {};  ///< v; unset: every v that the catalogue has, up to 4
  Objective objective = Objective::Makespan;
  /// q; above 1 the schedules of causal slices are searched, and only they; unset: 1.
  std::optional<int> slices = {};
  /// Largest memory of a rank at any moment, in the units of Cost::memory_*.
  double memory_limit = std::numeric_limits<double>::infinity();
  /// Only schedules whose stages lie on the ranks like this; unset: any.
  std::optional<Placement> placement = {};
  /// A program with these counts that the search begins with too, its pairs decoupled unless some
  /// run as one: the result is not worse than it. One that recomputes needs `recompute`. Null: the
  /// catalogue alone.
  std::shared_ptr<const Program> from = {};
  /// Costs of a shape; empty: Cost::unit. Called for shapes of different chunks and placements,
  /// which must cost the same model. Without contention and shared processors. With several copies
  /// of the pipeline every schedule is timed with their sums, and with what replicas of its stages
  /// give each other, behind all passes (insert_late_reductions). With several passes
  /// (Cost::passes) the step is what becomes small; the objective is the makespan then.
  std::function<Cost(const Shape&)> cost = {};
  /// Orders that may be timed, beyond the portfolio, which is always timed whole; with `recompute`
  /// as many again.
  std::int64_t budget = 20'000;
  std::uint64_t seed = 1;
  /// Whether stages may run the forward of micro-batches again right before their backward: less
  /// memory for the time of Cost::recompute. The bound then covers any such choice: it takes
  /// recompute to be free, so it is often below what can be reached.
  bool recompute = false;
  /// Only schedules whose backwards are whole: B for each I, and no W.
  bool full_backward = false;
  /// Also schedules with two copies of the model (weights count twice; the limit does not see it).
  bool bidirectional = true;
  /// Wall-clock limit; the result is deterministic only where it does not cut. The first candidate
  /// is finished whatever it takes, nothing else begins or continues after the cap: generators and
  /// evaluations look at the clock too.
  std::optional<double> time_cap_seconds = {};
  Stop stop = {};  ///< as the cap, by the caller's own measure
  std::function<void(const SearchProgress&)> progress = {};  ///< called before each piece of work
};

/// A schedule that was found, its figures in the user's units.
struct FoundSchedule {
  Program program = {};
  std::string generator;  ///< name in the catalogue, "NAME with neighbouring chunks" or "exact"
  std::vector<ParameterValue> parameters;  ///< what to ask the generator for
  std::string refinement;                  ///< empty, "relist" or "local search"
  std::vector<bool> recomputed = {};       ///< by stage: the program runs any forward of it again
  double makespan = 0;                     ///< of the last pass
  double span = 0;
  double peak_memory = 0;  ///< largest memory of any rank at any moment
  /// All passes of a step, of which the last one has the gradient all-reduces. Of one
  /// pass the makespan. Without what comes beside passes (Cost::after_passes).
  double step = 0;

  [[nodiscard]] double value(Objective objective) const {
    return objective == Objective::Makespan ? step : span;
  }
};

template <>
std::span<const ResultField<FoundSchedule>> result_fields();

struct SearchResult {
  std::optional<FoundSchedule> best;  ///< none: nothing fits under the limit
  /// What is not beaten in makespan, span and peak memory together, smallest peak first.
  std::vector<FoundSchedule> front;
  double lower_bound = 0;        ///< of all shapes that were considered, in the user's units
  double gap = 0;                ///< (best - lower_bound) / best; 0 without a best
  bool proven = false;           ///< best equals the bound, or the exact solver proved it
  std::int64_t evaluations = 0;  ///< orders timed
  bool cut_by_time = false;      ///< by the cap, or by `stop`
};

/// Searches. Steps:
/// 1. Every generator of the catalogue without slices (with q > 1: every sliced one), with every v,
///    group and number of waves that fits; pairs decoupled, and where some run as one also paired
///    (only then interleaved-pairs). With `chunks` also zb-h1, zb-auto and seq-1f1b, each stage cut
///    into chunks on its rank; with `full_backward` all with B for each I. Of entries
///    with `relisted` first the relisted order. Cheapest first: by forwards times what
///    one costs the generator (lists as tables 1, zb-auto, zb-v-auto and v-min 2, v-half 3,
///    1f1b-v 4, wave 9, v-zb 400), then in the order of the catalogue. Those above the limit stay
///    as seeds. Programs that can be neither best nor seed nor in the front are not kept. With
///    `recompute` each is also timed with the fewest recomputing stages with which it fits, all
///    such choices of few stages, up to three of many; and with few recomputing micro-batches.
/// 2. List scheduling under the limit from the best seeds of every placement (relist), also of
///    full-backward programs after splitting them. With `recompute` also with all stages
///    recomputing, then with as few as the order needs; and from the best find with one stage
///    changed, again and again while that helps, for a tenth of `budget` at most.
/// 3. Where ranks x micro-batches is at most 24, the exact solver on every shape with one or two
///    chunks and no slices, with 200,000 states for all of them: a few seconds at most. With
///    `recompute` on every choice of at most eight stages, and on one that recomputes at no time.
/// 4. Local search from the best: along the critical path, actions are swapped or moved on their
///    rank; slightly worse orders are accepted with a threshold that falls to 0. Where pairs run as
///    one, moves also pair and part actions. Every seed within the limit is then a start too, with
///    a tenth of `budget`.
/// 5. With `recompute`, where an order held too much: local search from up to six finds, which
///    share another `budget`; its moves also change which micro-batches of a stage recompute.
/// Of equally fast schedules the one with fewer recomputing stages is the best, then the one with
/// less memory; so where there is room nothing recomputes. The bound is the smallest over the
/// shapes considered, where the exact solver proved a shape its optimum. Never worse than any
/// catalogue entry that fits. Deterministic by seed. Throws InvalidArgument for counts below 1 or
/// of more than 2^24 forwards together (p m v q), a negative budget, a span of several passes,
/// between which all ranks wait for each other, and costs with contention or shared processors:
/// every order tried would need the whole event simulation, and no bound holds; search without and
/// simulate the result with it. Cut by time it is as good as every candidate that was finished
/// before. The bound of a shape that was not computed in time is the work of its busiest rank.
/// Cost: O(budget x actions), about 20 ns per action and evaluation.
[[nodiscard]] SearchResult search(const SearchOptions& options);

/// The costs of a search, as people say them: fills in `cost`; of a file of other stages than full
/// ones also the chunks, where they are unset; and leaves schedules with two copies of the model
/// out where the costs are of one cut only. Set the other options first. Throws InvalidArgument for
/// costs of slices or chunks whose number is not set, and for counts that `search` does not take.
void set_costs(SearchOptions& options, const Costs& costs);

/// What no other of `found` beats or equals in all of makespan, step, span and peak memory;
/// smallest peak first, then smallest makespan. Of equals the first stays.
[[nodiscard]] std::vector<FoundSchedule> pareto_front(std::vector<FoundSchedule> found);

/// The front as an aligned table, one line per schedule, a header line first; with a column for the
/// step where that is one of several passes.
[[nodiscard]] std::string front_table(const std::vector<FoundSchedule>& front);

/// The front as an SVG picture: peak memory to the right, makespan and span upwards.
[[nodiscard]] std::string front_svg(const std::vector<FoundSchedule>& front);

}  // namespace millrace
