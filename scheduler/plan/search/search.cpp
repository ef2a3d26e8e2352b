// The search: portfolio, relist, other choices of recompute, exact solver, local search, in this
// order, on one list of finds.
#include "millrace/scheduler/plan/search.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "plan/model/stage_sums.hpp"
#include "plan/schedules/list_order.hpp"
#include "plan/search/finds.hpp"
#include "plan/search/local_search.hpp"
#include "plan/search/portfolio.hpp"
#include "plan/search/recompute_choice.hpp"
#include "plan/search/relist.hpp"
#include "plan/search/shapes.hpp"
#include "plan/search/unit_search.hpp"

namespace millrace {

namespace plan {

namespace {

constexpr std::size_t kLocalStarts = 3;         // finds that the local search starts from
constexpr std::int64_t kExactStates = 200'000;  // of the exact solver, for all shapes together
constexpr std::int64_t kVaryShare = 10;         // of the budget, for other choices of recompute
constexpr std::int64_t kPairShare = 10;         // of the budget, for the pairs of each seed

class Search {
 public:
  explicit Search(const SearchOptions& options) : options_(options) {
    if (options.time_cap_seconds)
      deadline_ = std::chrono::steady_clock::now() +
                  std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                      std::chrono::duration<double>(*options.time_cap_seconds));
  }

  SearchResult run();

 private:
  void go();
  void time_portfolio();
  void time_one(const Candidate& candidate, Work* work);
  double time_program(FoundSchedule found, const Cost& cost, Work* work);
  double keep(FoundSchedule found, const Figures& figures, const Cost& cost);
  void note(std::string at, std::size_t timed = 0, std::size_t candidates = 0) const;
  void relist_seeds();
  void relist_one(const FoundSchedule& seed, const Program& program);
  void pair_seeds();
  void relist_recomputing(const FoundSchedule& seed);
  void vary_recompute();
  void search_locally();
  void search_from(const FoundSchedule& start, std::int64_t budget, std::uint32_t stream);
  void solve_small();
  std::int64_t solve_one(BoundedShape& shape, std::int64_t states);
  double solve_choice(const Shape& shape,
                      const Cost& cost,
                      const RecomputeChoice& choice,
                      std::int64_t states,
                      std::int64_t& left);

  [[nodiscard]] bool finished() const;
  bool out_of_time();

  const SearchOptions& options_;
  std::optional<std::chrono::steady_clock::time_point> deadline_;
  Finds finds_{options_};
  Shapes shapes_{options_};
  std::int64_t evaluations_ = 0;
  bool cut_by_time_ = false;
  Work work_{[this] { return out_of_time(); }};
  UnitSearch by_unit_{options_, work_, evaluations_};
};

bool Search::out_of_time() {
  if (deadline_ && std::chrono::steady_clock::now() >= *deadline_) cut_by_time_ = true;
  if (!cut_by_time_ && options_.stop && options_.stop()) cut_by_time_ = true;
  return cut_by_time_;
}

void Search::note(std::string at, std::size_t timed, std::size_t candidates) const {
  if (!options_.progress) return;
  SearchProgress progress{.at = std::move(at), .candidates = candidates, .timed = timed};
  for (const FoundSchedule& found : finds_.within())
    progress.best = std::min(progress.best, finds_.value(found));
  options_.progress(progress);
}

/// All candidates, the first one whatever it takes.
void Search::time_portfolio() {
  std::vector<Candidate> candidates = portfolio(options_);
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    Candidate& candidate = candidates[i];
    note(title(candidate), i, candidates.size());
    if (evaluations_ == 0) {
      time_one(candidate, nullptr);
      continue;
    }
    work_.ask();
    candidate.options.stop = [this] { return out_of_time(); };
    time_one(candidate, &work_);
    finds_.forget_hopeless();
  }
}

void Search::time_one(const Candidate& candidate, Work* work) {
  std::optional<Program> program = make(candidate, options_);
  if (!program) return;
  const Cost cost = search_cost(options_, program->shape);
  require(
      cost.passes == 1 || options_.objective == Objective::Makespan,
      named("accumulate") +
          (" is " + std::to_string(cost.passes) +
           ": between the passes of a step all ranks wait for each other, so steps have no span "
           "to make small; search for the makespan"));
  shapes_.note(program->shape);
  FoundSchedule found{.program = std::move(*program),
                      .generator = generator_of(candidate),
                      .parameters = set_values(candidate.options),
                      .refinement = {}};
  if (options_.recompute) {
    bool fits = false;
    for (const RecomputeChoice& choice :
         fitting_choices(found.program, cost, options_.memory_limit, work)) {
      FoundSchedule again = found;
      again.program = insert_recompute(found.program, choice);
      if (again.program != found.program) time_program(std::move(again), cost, work);
      fits = std::ranges::find(choice, true) == choice.end();
    }
    if (!fits) by_unit_.time(found, cost, work);
  }
  if (candidate.entry != nullptr && candidate.entry->relisted) {
    FoundSchedule shorter = found;
    shorter.program = relist_within_own_memory(found.program, cost);
    shorter.refinement = "relist";
    if (shorter.program.ranks != found.program.ranks) time_program(std::move(shorter), cost, work);
  }
  FoundSchedule apart = found;
  apart.program = decouple_pairs(found.program);
  if (apart.program.ranks != found.program.ranks) time_program(std::move(apart), cost, work);
  time_program(std::move(found), cost, work);
}

/// Its objective, in ticks.
double Search::time_program(FoundSchedule found, const Cost& cost, Work* work) {
  const Job job(found.program, cost, work);
  Evaluator evaluator(job, options_.objective);
  const JobOrder order = job.own_order();
  evaluator.reset(order, job.own_pairs());
  ++evaluations_;
  return keep(std::move(found), evaluator.figures(order), cost);
}

/// Its objective, in ticks.
double Search::keep(FoundSchedule found, const Figures& figures, const Cost& cost) {
  finds_.keep(std::move(found), figures, cost.ticks_per_unit);
  return figures.value(options_.objective);
}

bool Search::finished() const {
  const FoundSchedule* found = finds_.best();
  return found != nullptr && finds_.value(*found) <= shapes_.bound() * (1 + 1e-12);
}

void Search::relist_seeds() {
  for (const FoundSchedule& seed : finds_.seeds()) {
    note("relisting " + seed.generator);
    work_.ask();
    relist_one(seed, seed.program);
    const Program split = split_backward(seed.program);
    if (split != seed.program && !options_.full_backward) relist_one(seed, split);
    if (options_.recompute) relist_recomputing(seed);
  }
}

/// All stages of the seed recompute, and then no more of them than the order that this gives needs.
void Search::relist_recomputing(const FoundSchedule& seed) {
  const Program plain = compute_only(seed.program);
  const Cost cost = search_cost(options_, plain.shape);
  const Job job(insert_recompute(plain), cost, &work_);
  const auto listed = relist_order(
      job, job.own_order(), {options_.memory_limit, options_.objective, 6}, evaluations_);
  if (!listed) return;
  const Program order = compute_only(job.program(listed->order));
  FoundSchedule relisted = seed;
  relisted.program = order;
  relisted.refinement = "relist";
  by_unit_.time(relisted, cost, &work_);
  std::optional<Program> fastest;
  double least = std::numeric_limits<double>::infinity();
  for (const RecomputeChoice& choice :
       fitting_choices(order, cost, options_.memory_limit, &work_)) {
    FoundSchedule again = seed;
    again.program = insert_recompute(order, choice);
    again.refinement = "relist";
    const double value = time_program(again, cost, &work_);
    if (value >= least) continue;
    least = value;
    fastest = std::move(again.program);
  }
  if (fastest) relist_one(seed, *fastest);
}

/// Lets one stage after the other of the best find recompute, or recompute no more, with the order
/// that suits it, as long as that helps.
void Search::vary_recompute() {
  const std::int64_t end = evaluations_ + options_.budget / kVaryShare;
  for (bool better = true; better && !finished();) {
    const FoundSchedule* const best = finds_.best();
    if (best == nullptr) return;
    const FoundSchedule start = *best;
    const Program plain = compute_only(start.program);
    note("recompute of other stages than " + start.generator + "'s");
    for (std::size_t stage = 0; stage < start.recomputed.size(); ++stage) {
      if (evaluations_ >= end) return;
      RecomputeChoice choice = start.recomputed;
      choice[stage] = !choice[stage];
      relist_one(start, insert_recompute(plain, choice));
    }
    better = finds_.value(*finds_.best()) < finds_.value(start);
  }
}

/// Where pairs may run as one: lets passes of each seed do so, with a share of the budget.
void Search::pair_seeds() {
  const std::vector<FoundSchedule> seeds = finds_.seeds();
  for (const FoundSchedule& seed : seeds) {
    if (!search_cost(options_, seed.program.shape).pair.any()) return;
    if (!within_limit(seed.peak_memory, options_.memory_limit) || finished()) continue;
    note("pairs of " + seed.generator);
    search_from(seed, options_.budget / kPairShare, 0);
  }
}

void Search::relist_one(const FoundSchedule& seed, const Program& program) {
  const Cost cost = search_cost(options_, program.shape);
  const Job job(program, cost, &work_);
  const auto listed = relist_order(
      job, job.own_order(), {options_.memory_limit, options_.objective, 6}, evaluations_);
  if (!listed) return;
  Program result = job.program(listed->order);
  if (result == seed.program) return;
  keep({.program = std::move(result),
        .generator = seed.generator,
        .parameters = seed.parameters,
        .refinement = "relist"},
       listed->figures,
       cost);
}

/// Splits what is left of the budget over the best finds, the best one first with half of it.
void Search::search_locally() {
  const std::vector<FoundSchedule> starts = finds_.best_programs(kLocalStarts);
  std::int64_t left = options_.budget;
  for (std::uint32_t i = 0; i < starts.size() && !finished() && !out_of_time(); ++i) {
    note("local search from " + starts[i].generator);
    const std::int64_t share = i + 1 == starts.size() ? left : left / 2;
    left -= share;
    search_from(starts[i], share, i);
  }
}

void Search::search_from(const FoundSchedule& start, std::int64_t budget, std::uint32_t stream) {
  const Cost cost = search_cost(options_, start.program.shape);
  const Job job(start.program, cost, &work_);
  LocalSearchOptions local;
  local.objective = options_.objective;
  local.memory_limit = options_.memory_limit;
  local.evaluations = budget;
  local.seed = options_.seed;
  local.stream = stream;
  local.goal = shapes_.bound() * cost.ticks_per_unit;
  const auto [improved, leads] = local_search(job, job.own_order(), local, evaluations_);
  if (cut_by_time_) work_.mute();  // what was met is still timed
  FoundSchedule found{.program = job.program(improved, leads),
                      .generator = start.generator,
                      .parameters = start.parameters,
                      .refinement = "local search"};
  if (std::ranges::find(leads, true) != leads.end()) {
    time_program(std::move(found), cost, nullptr);
    return;
  }
  const int rounds = cut_by_time_ ? 0 : 6;
  const auto listed = relist_order(
      job, improved, {options_.memory_limit, options_.objective, rounds}, evaluations_);
  if (!listed) return;
  found.program = job.program(listed->order);
  if (found.program != start.program) keep(std::move(found), listed->figures, cost);
}

/// Every small shape gets an even share of the states that the ones before it left.
void Search::solve_small() {
  const std::vector<BoundedShape*> small = shapes_.small();
  std::int64_t states = kExactStates;
  for (std::size_t i = 0; i < small.size(); ++i) {
    if (finished()) return;
    note("the exact solver");
    work_.ask();
    if (const FoundSchedule* found = finds_.best();
        found != nullptr && small[i]->bound >= finds_.value(*found))
      continue;
    states -= solve_one(*small[i], states / static_cast<std::int64_t>(small.size() - i));
  }
}

/// Proves or improves one shape; returns the states that it took. With recompute, choices of stages
/// only improve: the bound is of what recomputes at no time.
std::int64_t Search::solve_one(BoundedShape& shape, std::int64_t states) {
  const Cost cost = search_cost(options_, shape.shape);
  const std::vector<BoundedChoice> choices = choices_for(options_, shape, cost);
  std::int64_t left = states;
  double bound = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const FoundSchedule* const found = finds_.best();
    const bool open = found == nullptr || choices[i].bound < finds_.value(*found);
    const std::int64_t share = left / static_cast<std::int64_t>(choices.size() - i);
    bound = std::min(
        bound,
        open ? solve_choice(shape.shape, cost, choices[i].choice, share, left) : choices[i].bound);
  }
  if (options_.recompute) {
    std::int64_t more = states;
    bound = solve_choice(shape.shape, with_least_memory(cost), {}, states, more);
  }
  if (exact_covers_all(options_, cost)) shape.bound = std::max(shape.bound, bound);
  return states - left;
}

/// The bound of what recomputes like this; takes states from those that are left.
double Search::solve_choice(const Shape& shape,
                            const Cost& cost,
                            const RecomputeChoice& choice,
                            std::int64_t states,
                            std::int64_t& left) {
  Cost of_one_copy = cost;  // what the solver takes: one pass, without the sums after the last
  of_one_copy.data_parallel = of_one_copy.passes = 1;
  const ExactResult exact = solve_exact(shape,
                                        of_one_copy,
                                        {.objective = options_.objective,
                                         .memory_limit = options_.memory_limit,
                                         .fused = options_.full_backward,
                                         .recompute = choice,
                                         .state_limit = states,
                                         .stop = [this] { return out_of_time(); }});
  left -= exact.states;
  if (exact.program) {
    const FoundSchedule found{.program = *exact.program,
                              .generator = "exact",
                              .parameters = {{"chunks", std::to_string(shape.chunks())}},
                              .refinement = {}};
    const Cost own = search_cost(options_, shape);
    time_program(found, own, nullptr);
    if (options_.recompute) by_unit_.time(found, own, &work_);
  }
  return cost.passes * exact.lower_bound +
         least_sum(shape, cost, options_.objective) / cost.ticks_per_unit;
}

void Search::go() {
  time_portfolio();
  shapes_.raise_bounds([this] { note("the bound"); }, [this] { return out_of_time(); });
  if (!finished()) relist_seeds();
  if (options_.recompute) vary_recompute();
  if (!finished()) pair_seeds();
  if (!finished()) solve_small();
  if (!finished()) search_locally();
  if (options_.recompute && !finished() && !out_of_time()) {
    note("local search of recompute by micro-batch");
    by_unit_.search(finds_.best_programs(kLocalStarts), shapes_.bound());
  }
}

SearchResult Search::run() {
  try {
    go();
  } catch (const Stopped&) {
    cut_by_time_ = true;
  }
  finds_.take(by_unit_.finds());
  SearchResult result;
  if (const FoundSchedule* found = finds_.best()) result.best = *found;
  result.front = pareto_front(finds_.within());
  result.lower_bound = shapes_.bound();
  result.evaluations = evaluations_;
  result.cut_by_time = cut_by_time_;
  if (!result.best) return result;
  result.proven = finished();
  const double value = result.best->value(options_.objective);
  if (value > 0 && !result.proven) result.gap = (value - result.lower_bound) / value;
  return result;
}

}  // namespace

}  // namespace plan

SearchResult search(const SearchOptions& options) {
  plan::require_counts(options);
  require(options.budget >= 0,
          "the budget is " + std::to_string(options.budget) + "; it is at least 0");
  return plan::Search(options).run();
}

}  // namespace millrace
