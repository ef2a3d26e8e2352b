// Replays an order rank by rank: a rank runs until an action's producer has not, and is woken by
// it.
#include "plan/search/evaluator.hpp"

#include <algorithm>
#include <utility>

namespace millrace::plan {

Evaluator::Evaluator(const Job& job, Objective objective)
    : job_(job),
      objective_(objective),
      end_(job.size(), kNotYet),
      trial_(job.size(), kNotYet),
      ranks_(static_cast<std::size_t>(job.ranks())),
      waiter_(job.size(), kNobody),
      next_waiter_(ranks_.size(), kNobody) {
  ready_.reserve(2 * ranks_.size());
}

bool Evaluator::reset(const JobOrder& order) {
  std::fill(trial_.begin(), trial_.end(), kNotYet);
  for (std::size_t r = 0; r < ranks_.size(); ++r)
    ranks_[r] = {.next = job_.first(r), .left = job_.work(r)};
  trial_value_ = run(order, std::numeric_limits<double>::infinity());
  keep(order);
  return objective_value_ < std::numeric_limits<double>::infinity();
}

double Evaluator::try_order(const JobOrder& order,
                            std::size_t rank,
                            std::size_t from,
                            double bound) {
  const double time = from == job_.first(rank) ? 0 : end_[order_[from - 1]];
  job_.spend(job_.size() / 8);
  trial_ = end_;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    const std::size_t next = r == rank ? from : first_not_before(r, time);
    RankState state{.next = next};
    if (next > job_.first(r)) {
      state.clock = end_[order_[next - 1]];
      state.first_start = start(order_[job_.first(r)]);
    }
    for (std::size_t at = next; at < job_.first(r + 1); ++at) {
      trial_[order_[at]] = kNotYet;
      state.left += job_.ticks(order_[at]);
    }
    ranks_[r] = state;
  }
  trial_value_ = run(order, bound);
  return trial_value_;
}

void Evaluator::keep(const JobOrder& order) {
  std::swap(end_, trial_);
  order_ = order;
  objective_value_ = trial_value_;
}

/// First place of a rank whose action ends at or after `time`: what ends before has started before.
std::size_t Evaluator::first_not_before(std::size_t rank, double time) const {
  const auto begin = order_.begin() + job_.first(rank);
  const auto end = order_.begin() + job_.first(rank + 1);
  const auto found =
      std::partition_point(begin, end, [&](JobNode node) { return end_[node] < time; });
  return static_cast<std::size_t>(found - order_.begin());
}

double Evaluator::run(const JobOrder& order, double bound) {
  ready_.clear();
  for (std::size_t r = ranks_.size(); r-- > 0;) ready_.push_back(static_cast<std::uint32_t>(r));
  bool within = true;
  while (!ready_.empty() && within) {
    const std::uint32_t rank = ready_.back();
    ready_.pop_back();
    const std::size_t before = ranks_[rank].next;
    within = advance(order, rank, bound);
    job_.spend(1 + ranks_[rank].next - before);
  }
  double value = 0;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    RankState& state = ranks_[r];
    if (state.next < job_.first(r + 1)) {
      value = std::numeric_limits<double>::infinity();
      for (const JobEdge& edge : job_.producers(order[state.next])) waiter_[edge.node] = kNobody;
    }
    next_waiter_[r] = kNobody;
    value = std::max(value, state.clock - offset(state));
  }
  return within ? value : std::numeric_limits<double>::infinity();
}

/// Runs a rank as far as it gets; false when the objective must exceed the bound.
bool Evaluator::advance(const JobOrder& order, std::size_t rank, double bound) {
  RankState& state = ranks_[rank];
  const std::size_t last = job_.first(rank + 1);
  while (state.next < last) {
    const JobNode node = order[state.next];
    double begin = state.clock;
    for (const JobEdge& edge : job_.producers(node)) {
      const double end = trial_[edge.node];
      if (end == kNotYet) {
        wait(rank, edge.node);
        return true;
      }
      begin = std::max(begin, end + edge.delay);
    }
    if (state.next == job_.first(rank)) state.first_start = begin;
    if (begin + state.left - offset(state) > bound) return false;
    const double end = begin + job_.ticks(node);
    state.clock = trial_[node] = end;
    state.left -= job_.ticks(node);
    ++state.next;
    for (std::uint32_t woken = waiter_[node]; woken != kNobody;) {
      ready_.push_back(woken);
      woken = std::exchange(next_waiter_[woken], kNobody);
    }
    waiter_[node] = kNobody;
  }
  return true;
}

void Evaluator::wait(std::size_t rank, JobNode node) {
  next_waiter_[rank] = waiter_[node];
  waiter_[node] = static_cast<std::uint32_t>(rank);
}

Figures Evaluator::figures(const JobOrder& order) const {
  Figures figures;
  figures.feasible = objective_value_ < std::numeric_limits<double>::infinity();
  if (!figures.feasible) return figures;
  double first = std::numeric_limits<double>::infinity(), last = 0;
  figures.span = 0;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    double memory = 0;
    for (std::size_t at = job_.first(r); at < job_.first(r + 1); ++at) {
      memory += job_.memory(order[at]);
      figures.peak = std::max(figures.peak, memory);
    }
    if (job_.first(r) == job_.first(r + 1)) continue;
    const double begin = start(order[job_.first(r)]), end = end_[order[job_.first(r + 1) - 1]];
    figures.span = std::max(figures.span, end - begin);
    first = std::min(first, begin);
    last = std::max(last, end);
  }
  figures.makespan = last - first;
  return figures;
}

}  // namespace millrace::plan
