// Starts, local search and relist with recompute by micro-batch.
#include "plan/search/unit_search.hpp"

#include <algorithm>

#include "millrace/scheduler/plan/passes.hpp"
#include "plan/search/portfolio.hpp"
#include "plan/search/relist.hpp"

namespace millrace::plan {

namespace {

constexpr std::size_t kStarts = 3;  // finds that the local search starts from, besides those given
constexpr std::uint32_t kFirstStream = 100;  // of random numbers; other searches have lower ones

}  // namespace

void UnitSearch::time(const FoundSchedule& found, const Cost& cost, Work* work) {
  UnitChoice choice(compute_only(found.program), cost, work);
  const JobOrder order = choice.job().own_order();
  Evaluator evaluator(choice.job(), options_.objective);
  if (!evaluator.reset(order)) return;
  std::vector<std::size_t> place(order.size());
  for (std::size_t at = 0; at < order.size(); ++at) place[order[at]] = at;
  const auto last = [&](Node node) { return -static_cast<double>(place[node]); };
  const auto idle = [&](Node node) {
    return last(node) -
           static_cast<double>(order.size()) * evaluator.idle_before(order, place[node]);
  };
  for (const UnitChoice::Price& price : {UnitChoice::Price(last), UnitChoice::Price(idle)}) {
    for (std::size_t r = 0; r < found.program.ranks.size(); ++r)
      if (!choice.make_room(order, r, options_.memory_limit, price, kNoNode)) return;
    if (choice.open().empty()) return;
    keep(found, choice.job(), order, cost);
    choice.undo();
  }
  finds_.forget_hopeless();
}

void UnitSearch::keep(FoundSchedule found,
                      const Job& job,
                      const JobOrder& order,
                      const Cost& cost) {
  Evaluator evaluator(job, options_.objective);
  evaluator.reset(order);
  ++evaluations_;
  found.program = job.program(order);
  finds_.keep(std::move(found), evaluator.figures(order), cost.ticks_per_unit);
}

void UnitSearch::search(const std::vector<FoundSchedule>& starts, double bound) {
  if (finds_.within().empty()) return;
  std::vector<FoundSchedule> all = finds_.best_programs(kStarts);
  all.insert(all.end(), starts.begin(), starts.end());
  for (std::size_t i = 0; i < all.size() && !work_.stopped(); ++i) {
    work_.ask();
    LocalSearchOptions local;
    local.objective = options_.objective;
    local.memory_limit = options_.memory_limit;
    local.evaluations = options_.budget / static_cast<std::int64_t>(all.size());
    local.seed = options_.seed;
    local.stream = kFirstStream + static_cast<std::uint32_t>(i);
    local.goal = bound;
    search_from(std::move(all[i]), local);
  }
}

void UnitSearch::search_from(FoundSchedule start, LocalSearchOptions local) {
  const Cost cost = search_cost(options_, start.program.shape);
  local.goal *= cost.ticks_per_unit;
  UnitChoice choice(decouple_pairs(start.program), cost, &work_);
  JobOrder improved = local_search(choice, choice.job().own_order(), local, evaluations_);
  if (work_.stopped()) work_.mute();  // what was met is still timed
  const int rounds = work_.stopped() ? 0 : 6;
  const auto listed = relist_order(
      choice.job(), improved, {options_.memory_limit, options_.objective, rounds}, evaluations_);
  if (listed) improved = listed->order;
  start.refinement = "local search";
  keep(start, choice.job(), improved, cost);
  if (work_.stopped()) return;
  choice.give_back(improved, options_.memory_limit);
  keep(std::move(start), choice.job(), improved, cost);
}

}  // namespace millrace::plan
