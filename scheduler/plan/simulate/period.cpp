// Cycles among the ranks, and later starts while the period so far is too short.
#include "plan/simulate/period.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace millrace::plan {

namespace {

/// Of the latest end: below it, two starts are the same up to rounding.
constexpr double kPeriodRounding = 1e-13;
constexpr std::size_t kNoRank = std::numeric_limits<std::size_t>::max();

}  // namespace

bool Period::improve(const std::vector<Reach>& reach) {
  std::vector<Step> run(reach.size());
  for (std::size_t s = 0; s < reach.size(); ++s) {
    const double ticks = reach[s].end - starts_[reach[s].origin];
    run[s] = {reach[s].origin, whole_ ? std::nearbyint(ticks) : ticks};
    tolerance_ = std::max(tolerance_, kPeriodRounding * std::abs(reach[s].end));
  }
  raise(run);
  if (fresh_) step_.assign(reach.size(), {kNoRank, 0});
  fresh_ = false;
  bool later = false;
  for (std::size_t s = 0; s < reach.size(); ++s) {
    const double start = reach[s].end - ratio_.value();
    if (start <= starts_[s] + tolerance_) continue;
    starts_[s] = start;
    step_[s] = run[s];
    later = true;
  }
  return raise(step_) || later;
}

/// Takes the largest ratio among the cycles of `steps` if it is above what is known.
bool Period::raise(const std::vector<Step>& steps) {
  const CycleRatio found = largest_cycle(steps);
  const double rounding = whole_ ? 0 : tolerance_ * found.wraps * ratio_.wraps;
  if (found.ticks * ratio_.wraps <= ratio_.ticks * found.wraps + rounding) return false;
  ratio_ = found;
  fresh_ = true;
  return true;
}

/// Every rank has at most one step, so its steps lead into at most one cycle.
CycleRatio Period::largest_cycle(const std::vector<Step>& steps) {
  CycleRatio largest;
  std::vector<std::size_t> seen(steps.size(), kNoRank);  // by rank: the walk that met it
  for (std::size_t from = 0; from < steps.size(); ++from) {
    std::size_t at = from;
    while (at != kNoRank && seen[at] == kNoRank) {
      seen[at] = from;
      at = steps[at].origin;
    }
    if (at == kNoRank || seen[at] != from) continue;
    CycleRatio cycle{steps[at].ticks, 1, at};
    for (std::size_t next = steps[at].origin; next != at; next = steps[next].origin) {
      cycle.ticks += steps[next].ticks;
      cycle.wraps += 1;
    }
    if (cycle.value() > largest.value()) largest = cycle;
  }
  return largest;
}

}  // namespace millrace::plan
