// Relisting: an order's own start times are the priorities of the next one.
#include "plan/search/relist.hpp"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "plan/model/memory.hpp"
#include "plan/schedules/list_order.hpp"

namespace millrace {

namespace plan {

namespace {

struct Trial {
  JobOrder order;
  double value = std::numeric_limits<double>::infinity();  // of the objective
  double peak = 0;
  std::vector<double> start;
};

Trial timed(const Job& job, const JobOrder& order, Objective objective) {
  Evaluator evaluator(job, objective);
  evaluator.reset(order);
  Trial trial{order, evaluator.objective(), evaluator.peak(order), std::vector<double>(job.size())};
  for (Node node = 0; node < job.size(); ++node) trial.start[node] = evaluator.start(node);
  return trial;
}

/// A deadlocked order has no start times; its positions serve.
void use_positions(const Job& job, Trial& trial) {
  for (std::size_t r = 0; r < static_cast<std::size_t>(job.ranks()); ++r)
    for (std::size_t at = job.first(r); at < job.first(r + 1); ++at)
      trial.start[trial.order[at]] = static_cast<double>(at - job.first(r));
}

}  // namespace

std::optional<Listed> relist_order(const Job& job,
                                   const JobOrder& order,
                                   const RelistOptions& options,
                                   std::int64_t& evaluations) {
  const double none = std::numeric_limits<double>::infinity();
  const auto fits = [&](const Trial& trial) {
    return trial.value < none && within_limit(trial.peak, options.memory_limit);
  };
  Trial seed = timed(job, order, options.objective);
  ++evaluations;
  if (seed.value == none) use_positions(job, seed);
  std::optional<Trial> best;
  if (fits(seed)) best = seed;
  for (int round = 0; round < options.rounds; ++round) {
    bool better = false;
    for (const WeightRule rule :
         {WeightRule::Filler, WeightRule::FitsGap, WeightRule::ByPriority}) {
      const auto listed = list_order(job, {seed.start, options.memory_limit, rule});
      if (!listed) continue;
      Trial trial = timed(job, *listed, options.objective);
      ++evaluations;
      if (!fits(trial) || (best && trial.value >= best->value)) continue;
      best = std::move(trial);
      better = true;
    }
    if (!better) break;
    seed = *best;
  }
  if (!best) return std::nullopt;
  Evaluator evaluator(job, options.objective);
  evaluator.reset(best->order);
  return Listed{best->order, evaluator.figures(best->order)};
}

}  // namespace plan

std::optional<Program> relist(const Program& program,
                              const Cost& cost,
                              const RelistOptions& options) {
  const plan::Job job(program, cost);
  std::int64_t evaluations = 0;
  const auto listed = plan::relist_order(job, job.own_order(), options, evaluations);
  if (!listed) return std::nullopt;
  return job.program(listed->order);
}

Program relist_within_own_memory(const Program& program, const Cost& cost) {
  double most = 0;
  for (const plan::MemoryPeak& peak : plan::memory_peaks(program, cost))
    most = std::max(most, peak.bytes);
  std::optional<Program> listed = relist(program, cost, {.memory_limit = most});
  if (!listed) return program;
  listed->name = program.name + " + relist";
  return *std::move(listed);
}

}  // namespace millrace
