// Starts, local search and relist with a free choice of recompute.
#include "plan/search/unit_search.hpp"

#include <algorithm>

#include "millrace/scheduler/plan/passes.hpp"
#include "plan/search/local_search.hpp"
#include "plan/search/portfolio.hpp"
#include "plan/search/relist.hpp"

namespace millrace::plan {

namespace {

constexpr std::size_t kStarts = 3;  // finds that the local search starts from, besides those given

}  // namespace

void UnitSearch::time(const FoundSchedule& found, const Cost& cost, Work* work) {
  UnitChoice choice(compute_only(found.program), cost, work);
  const JobOrder order = choice.job().own_order();
  Evaluator evaluator(choice.job(), options_.objective);
  if (!evaluator.reset(order)) return;
  std::vector<std::size_t> place(order.size());
  for (std::size_t at = 0; at < order.size(); ++at) place[order[at]] = at;
  const auto ranks = static_cast<std::size_t>(choice.job().ranks());
  const auto last = [&](Node node) { return -static_cast<double>(place[node]); };
  const auto gap = [&](Node node) {
    const std::size_t at = place[node];
    const bool first = at == choice.job().first(choice.job().rank(node));
    const double free = first ? 0 : evaluator.end(order[at - 1]);
    return -static_cast<double>(order.size()) * (evaluator.start(node) - free) + last(node);
  };
  for (const UnitChoice::Price& price : {UnitChoice::Price(last), UnitChoice::Price(gap)}) {
    bool fits = true;
    for (std::size_t r = 0; fits && r < ranks; ++r)
      fits = choice.make_room(order, r, options_.memory_limit, price, kNoNode);
    if (!fits || choice.open().empty()) return;
    choice.settle();
    keep(found, choice, order, cost, found.refinement);
    for (const Node node : order)
      if (choice.job().recomputes(node)) choice.choose(node, false);
    choice.settle();
  }
  finds_.forget_hopeless();
}

void UnitSearch::keep(const FoundSchedule& start,
                      UnitChoice& choice,
                      const JobOrder& order,
                      const Cost& cost,
                      const std::string& refinement) {
  Evaluator evaluator(choice.job(), options_.objective);
  evaluator.reset(order);
  ++evaluations_;
  finds_.keep({.program = choice.job().program(order),
               .generator = start.generator,
               .parameters = start.parameters,
               .refinement = refinement},
              evaluator.figures(order),
              cost.ticks_per_unit);
}

void UnitSearch::search(const std::vector<FoundSchedule>& starts, double bound) {
  if (finds_.within().empty()) return;
  std::vector<FoundSchedule> all = finds_.best_programs(kStarts);
  all.insert(all.end(), starts.begin(), starts.end());
  for (const FoundSchedule& start : all) {
    work_.ask();
    search_from(start, options_.budget, bound);
  }
}

void UnitSearch::search_from(const FoundSchedule& start, std::int64_t budget, double bound) {
  const Cost cost = search_cost(options_, start.program.shape);
  UnitChoice choice(start.program, cost, &work_);
  LocalSearchOptions local;
  local.objective = options_.objective;
  local.memory_limit = options_.memory_limit;
  local.evaluations = budget;
  local.seed = options_.seed;
  local.stream = stream_++;
  local.goal = bound * cost.ticks_per_unit;
  JobOrder improved = local_search(choice, choice.job().own_order(), local, evaluations_);
  const auto listed = relist_order(
      choice.job(), improved, {options_.memory_limit, options_.objective, 6}, evaluations_);
  if (listed) improved = listed->order;
  choice.give_back(improved, options_.memory_limit);
  choice.settle();
  keep(start, choice, improved, cost, "local search");
}

}  // namespace millrace::plan
