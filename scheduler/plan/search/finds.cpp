#include "plan/search/finds.hpp"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "millrace/scheduler/plan/passes.hpp"
#include "plan/schedules/list_order.hpp"

namespace millrace::plan {

namespace {

constexpr std::size_t kRelisted = 8;  // seeds, besides the best per shape
constexpr std::size_t kKept = 16;     // finds that are kept, besides those and the front

/// Whether `other` is as good in everything.
bool is_beaten(const FoundSchedule& found, const FoundSchedule& other) {
  return other.makespan <= found.makespan && other.step <= found.step && other.span <= found.span &&
         other.peak_memory <= found.peak_memory;
}

}  // namespace

void Finds::keep(FoundSchedule found, const Figures& figures, double ticks_per_unit) {
  if (!figures.feasible) return;
  found.makespan = figures.makespan / ticks_per_unit;
  found.step = figures.step / ticks_per_unit;
  found.span = figures.span / ticks_per_unit;
  found.peak_memory = figures.peak;
  found.recomputed = recomputed_stages(found.program);
  (within_limit(figures.peak, options_.memory_limit) ? within_ : above_)
      .push_back(std::move(found));
}

void Finds::take(const Finds& others) {
  within_.insert(within_.end(), others.within_.begin(), others.within_.end());
}

void Finds::forget_hopeless() {
  for (auto* finds : {&within_, &above_}) {
    std::vector<const FoundSchedule*> kept;
    std::vector<Shape> seen;
    for (const FoundSchedule* found : by_value(*finds)) {
      const Shape& shape = found->program.shape;
      const bool new_shape = std::ranges::find(seen, shape) == seen.end();
      const auto beats = [&](const FoundSchedule* other) { return is_beaten(*found, *other); };
      const bool in_front = finds == &within_ && std::ranges::none_of(kept, beats);
      if (kept.size() < kKept || new_shape || in_front) kept.push_back(found);
      if (new_shape) seen.push_back(shape);
    }
    if (kept.size() == finds->size()) continue;
    const std::set<const FoundSchedule*> stays(kept.begin(), kept.end());
    std::erase_if(*finds, [&](const FoundSchedule& found) { return !stays.contains(&found); });
  }
}

std::vector<const FoundSchedule*> Finds::by_value(const std::vector<FoundSchedule>& finds) const {
  std::vector<const FoundSchedule*> sorted;
  for (const FoundSchedule& found : finds) sorted.push_back(&found);
  std::ranges::stable_sort(sorted, {}, [&](const FoundSchedule* found) {
    return std::tuple(value(*found),
                      std::ranges::count(found->recomputed, true),
                      found->peak_memory,
                      found->makespan + found->span);
  });
  return sorted;
}

const FoundSchedule* Finds::best() const {
  const auto sorted = by_value(within_);
  return sorted.empty() ? nullptr : sorted.front();
}

std::vector<FoundSchedule> Finds::seeds() const {
  std::vector<FoundSchedule> seeds;
  for (const auto* finds : {&within_, &above_}) {
    std::vector<Shape> seen;
    for (const FoundSchedule* found : by_value(*finds)) {
      const bool new_shape = std::ranges::find(seen, found->program.shape) == seen.end();
      if (!new_shape && seen.size() >= kRelisted) continue;
      seen.push_back(found->program.shape);
      seeds.push_back(*found);
    }
  }
  return seeds;
}

std::vector<FoundSchedule> Finds::best_programs(std::size_t count) const {
  std::vector<FoundSchedule> programs;
  for (const FoundSchedule* found : by_value(within_)) {
    const auto same = [&](const FoundSchedule& other) { return other.program == found->program; };
    if (programs.size() < count && std::ranges::none_of(programs, same)) programs.push_back(*found);
  }
  return programs;
}

}  // namespace millrace::plan
