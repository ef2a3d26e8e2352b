// The search: portfolio, relist, local search, exact solver, in this order, on one list of finds.
#include "millrace/scheduler/plan/search.hpp"

#include <algorithm>
#include <chrono>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/exact.hpp"
#include "millrace/scheduler/plan/lower_bound.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "plan/schedules/list_order.hpp"
#include "plan/search/finds.hpp"
#include "plan/search/local_search.hpp"
#include "plan/search/portfolio.hpp"
#include "plan/search/relist.hpp"

namespace millrace {

namespace plan {

namespace {

constexpr std::size_t kLocalStarts = 3;  // finds that the local search starts from
// The exact solver: ranks x micro-batches, chunks, and states of all shapes together.
constexpr int kExactUnits = 24;
constexpr int kExactChunks = 2;
constexpr std::int64_t kExactStates = 200'000;

bool is_small(const Shape& shape) {
  return shape.ranks * std::int64_t{shape.micro_batches} <= kExactUnits &&
         shape.chunks() <= kExactChunks && shape.replicas() == 1 && shape.slices == 1;
}

/// What no schedule of the shape is below: the work of the busiest rank, in the user's units.
double busiest_work(const Shape& shape, const Cost& cost) {
  std::vector<double> units(static_cast<std::size_t>(shape.replicas()), 0);
  for (int m = 0; m < shape.micro_batches; ++m) ++units[shape.replica(MicroBatch{m}).index()];
  std::vector<double> work(static_cast<std::size_t>(shape.ranks), 0);
  for (int replica = 0; replica < shape.replicas(); ++replica)
    for (int stage = 0; stage < shape.stages(); ++stage) {
      const std::size_t rank = shape.rank(Replica{replica}, Stage{stage}).index();
      const double speed = cost.rank_speed.empty() ? 1 : cost.rank_speed[rank];
      for (int slice = 0; slice < shape.slices; ++slice) {
        const auto ticks = [&](Op op) {
          return cost.ticks(
              {.op = op, .stage = Stage{stage}, .micro_batch = {}, .slice = Slice{slice}});
        };
        const double split = ticks(Op::BackwardInput) + ticks(Op::BackwardWeight);
        const double least = ticks(Op::Forward) + std::min(split, ticks(Op::Backward));
        work[rank] += units[static_cast<std::size_t>(replica)] * least / speed;
      }
    }
  return *std::ranges::max_element(work) / cost.ticks_per_unit;
}

/// "wave w=2".
std::string title(const Candidate& candidate) {
  const std::string parameters = to_string(set_values(candidate.options));
  return std::string(candidate.entry->name) + (parameters.empty() ? "" : " " + parameters);
}

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
  struct Bounded {
    Shape shape;
    double bound = 0;
  };

  void go();
  void time_portfolio();
  void time_one(const Candidate& candidate, Work* work);
  void tell(std::string at, std::size_t timed = 0, std::size_t candidates = 0) const;
  void note_shape(const Shape& shape);
  void bound_shapes();
  void relist_seeds();
  void relist_one(const Found& seed, const Program& program);
  void search_locally();
  void search_from(const Found& start, std::int64_t budget, std::uint32_t stream);
  void solve_small();
  std::int64_t solve_one(Bounded& shape, std::int64_t states);

  [[nodiscard]] double bound() const;
  [[nodiscard]] bool finished() const;
  bool out_of_time();

  const SearchOptions& options_;
  std::optional<std::chrono::steady_clock::time_point> deadline_;
  Finds finds_{options_};
  std::vector<Bounded> shapes_;
  std::int64_t evaluations_ = 0;
  bool cut_by_time_ = false;
  Work work_{[this] { return out_of_time(); }};
};

bool Search::out_of_time() {
  if (deadline_ && std::chrono::steady_clock::now() >= *deadline_) cut_by_time_ = true;
  if (!cut_by_time_ && options_.stop && options_.stop()) cut_by_time_ = true;
  return cut_by_time_;
}

void Search::note_shape(const Shape& shape) {
  for (const Bounded& known : shapes_)
    if (known.shape == shape) return;
  shapes_.push_back({shape, busiest_work(shape, search_cost(options_, shape))});
}

void Search::bound_shapes() {
  for (Bounded& each : shapes_) {
    tell("the bound");
    const double bound = lower_bound(each.shape,
                                     search_cost(options_, each.shape),
                                     options_.objective,
                                     options_.memory_limit,
                                     [this] { return out_of_time(); });
    each.bound = std::max(each.bound, bound);
  }
}

void Search::tell(std::string at, std::size_t timed, std::size_t candidates) const {
  if (!options_.progress) return;
  SearchProgress progress{.at = std::move(at), .candidates = candidates, .timed = timed};
  for (const Found& found : finds_.within())
    progress.best = std::min(progress.best, finds_.value(found));
  options_.progress(progress);
}

/// All candidates, the first one whatever it takes.
void Search::time_portfolio() {
  std::vector<Candidate> candidates = portfolio(options_);
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    Candidate& candidate = candidates[i];
    tell(title(candidate), i, candidates.size());
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
  note_shape(program->shape);
  const Job job(*program, cost, work);
  Evaluator evaluator(job, options_.objective);
  const JobOrder order = job.own_order();
  evaluator.reset(order);
  ++evaluations_;
  finds_.keep({.program = std::move(*program),
               .generator = std::string(candidate.entry->name),
               .parameters = set_values(candidate.options),
               .refinement = {}},
              evaluator.figures(order),
              cost.ticks_per_unit);
}

/// The smallest bound of the shapes considered.
double Search::bound() const {
  double bound = std::numeric_limits<double>::infinity();
  for (const Bounded& shape : shapes_) bound = std::min(bound, shape.bound);
  return shapes_.empty() ? 0 : bound;
}

bool Search::finished() const {
  const Found* found = finds_.best();
  return found != nullptr && finds_.value(*found) <= bound() * (1 + 1e-12);
}

void Search::relist_seeds() {
  for (const Found& seed : finds_.seeds()) {
    tell("relisting " + seed.generator);
    work_.ask();
    relist_one(seed, seed.program);
    const Program split = split_backward(seed.program);
    if (split != seed.program) relist_one(seed, split);
  }
}

void Search::relist_one(const Found& seed, const Program& program) {
  const Cost cost = search_cost(options_, program.shape);
  const Job job(program, cost, &work_);
  const auto listed = relist_order(
      job, job.own_order(), {options_.memory_limit, options_.objective, 6}, evaluations_);
  if (!listed) return;
  Program result = job.program(listed->order);
  if (result == seed.program) return;
  finds_.keep({.program = std::move(result),
               .generator = seed.generator,
               .parameters = seed.parameters,
               .refinement = "relist"},
              listed->figures,
              cost.ticks_per_unit);
}

/// Splits what is left of the budget over the best finds, the best one first with half of it.
void Search::search_locally() {
  const std::vector<Found> starts = finds_.best_programs(kLocalStarts);
  std::int64_t left = options_.budget;
  for (std::uint32_t i = 0; i < starts.size() && !finished() && !out_of_time(); ++i) {
    tell("local search from " + starts[i].generator);
    const std::int64_t share = i + 1 == starts.size() ? left : left / 2;
    left -= share;
    search_from(starts[i], share, i);
  }
}

void Search::search_from(const Found& start, std::int64_t budget, std::uint32_t stream) {
  const Cost cost = search_cost(options_, start.program.shape);
  const Job job(start.program, cost, &work_);
  LocalSearchOptions local;
  local.objective = options_.objective;
  local.memory_limit = options_.memory_limit;
  local.evaluations = budget;
  local.seed = options_.seed;
  local.stream = stream;
  local.goal = bound() * cost.ticks_per_unit;
  const JobOrder improved = local_search(job, job.own_order(), local, evaluations_);
  if (cut_by_time_) work_.mute();  // what was met is still timed
  const int rounds = cut_by_time_ ? 0 : 6;
  const auto listed = relist_order(
      job, improved, {options_.memory_limit, options_.objective, rounds}, evaluations_);
  if (!listed) return;
  Program program = job.program(listed->order);
  if (program == start.program) return;
  finds_.keep({.program = std::move(program),
               .generator = start.generator,
               .parameters = start.parameters,
               .refinement = "local search"},
              listed->figures,
              cost.ticks_per_unit);
}

/// Whether every program with full or mixed backward has a split one that is as good.
bool split_covers_all(const Cost& cost) {
  return cost.backward.empty() &&
         std::ranges::all_of(cost.memory_input, [](double change) { return change <= 0; });
}

/// Every small shape gets an even share of the states that the ones before it left.
void Search::solve_small() {
  std::vector<Bounded*> small;
  for (Bounded& shape : shapes_)
    if (is_small(shape.shape)) small.push_back(&shape);
  std::int64_t states = kExactStates;
  for (std::size_t i = 0; i < small.size(); ++i) {
    if (finished()) return;
    tell("the exact solver");
    work_.ask();
    if (const Found* found = finds_.best();
        found != nullptr && small[i]->bound >= finds_.value(*found))
      continue;
    states -= solve_one(*small[i], states / static_cast<std::int64_t>(small.size() - i));
  }
}

/// Proves or improves one shape; returns the states that it took.
std::int64_t Search::solve_one(Bounded& shape, std::int64_t states) {
  const Cost cost = search_cost(options_, shape.shape);
  const ExactResult exact = solve_exact(shape.shape,
                                        cost,
                                        {.objective = options_.objective,
                                         .memory_limit = options_.memory_limit,
                                         .fused = false,
                                         .state_limit = states,
                                         .stop = [this] { return out_of_time(); }});
  if (split_covers_all(cost)) shape.bound = std::max(shape.bound, exact.lower_bound);
  if (!exact.program) return exact.states;
  const Job job(*exact.program, cost);
  Evaluator evaluator(job, options_.objective);
  evaluator.reset(job.own_order());
  ++evaluations_;
  finds_.keep({.program = *exact.program,
               .generator = "exact",
               .parameters = {{"chunks", std::to_string(shape.shape.chunks())}},
               .refinement = {}},
              evaluator.figures(job.own_order()),
              cost.ticks_per_unit);
  return exact.states;
}

void Search::go() {
  time_portfolio();
  bound_shapes();
  if (!finished()) relist_seeds();
  if (!finished()) solve_small();
  if (!finished()) search_locally();
}

SearchResult Search::run() {
  try {
    go();
  } catch (const Stopped&) {
    cut_by_time_ = true;
  }
  SearchResult result;
  if (const Found* found = finds_.best()) result.best = *found;
  result.front = pareto_front(finds_.within());
  result.lower_bound = bound();
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
  require(options.ranks >= 1 && options.micro_batches >= 1,
          "search needs at least 1 rank and 1 micro-batch; got " + std::to_string(options.ranks) +
              " and " + std::to_string(options.micro_batches));
  require(!options.chunks || *options.chunks >= 1,
          "search needs at least 1 chunk; got " + std::to_string(options.chunks.value_or(1)));
  require(options.slices >= 1,
          "search needs at least 1 slice; got " + std::to_string(options.slices));
  require(options.budget >= 0,
          "the budget is " + std::to_string(options.budget) + "; it is at least 0");
  return plan::Search(options).run();
}

}  // namespace millrace
