// Replays an order rank by rank, from where it differs from the current one.
#include "plan/search/evaluator.hpp"

#include <algorithm>
#include <utility>

namespace millrace::plan {

Evaluator::Evaluator(const Job& job, Objective objective)
    : job_(job),
      objective_(objective),
      passes_(objective == Objective::Makespan ? job.passes() : 1),
      end_(job.size(), kNotYet),
      rank_ends_(static_cast<std::size_t>(job.ranks())),
      starts_(rank_ends_.size(), 0),
      trial_(job.size(), kNotYet),
      trial_starts_(starts_),
      trial_ends_(rank_ends_),
      ranks_(starts_.size()),
      replay_(job.graph().first()),
      step_end_(job) {
  if (job.unit_run() != nullptr)
    unit_ = std::make_unique<Evaluator>(*job.unit_run(), Objective::Makespan);
}

bool Evaluator::reset(const JobOrder& order, const std::vector<bool>& leads) {
  leads_ = leads;
  if (leads_.empty() && job_.has_pairs()) leads_.resize(job_.size());
  begin(order);
  keep(order);
  return objective_value_ < std::numeric_limits<double>::infinity();
}

/// Tries an order as if there were none yet.
void Evaluator::begin(const JobOrder& order) {
  if (unit_) unit_->begin(order);
  std::ranges::fill(trial_starts_, 0);
  trial_value_ = run_whole(order, std::numeric_limits<double>::infinity());
}

double Evaluator::try_order(const JobOrder& order,
                            std::size_t rank,
                            std::size_t from,
                            double bound) {
  if (unit_) unit_->try_order(order, rank, from);
  const double time = from == job_.first(rank) ? starts_[rank] : end_[order_[from - 1]];
  job_.spend(job_.size() / 8);
  trial_ = end_;
  trial_starts_ = starts_;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    const Node next = r == rank ? static_cast<Node>(from) : first_not_before(r, time);
    replay_.begin_at(r, next);
    RankState state{.clock = starts_[r]};
    if (next > job_.first(r)) state.clock = end_[order_[next - 1]];
    for (Node at = next; at < job_.first(r + 1); ++at) {
      trial_[order_[at]] = kNotYet;
      state.left += job_.ticks(order_[at]);
    }
    if (!leads_.empty()) state.left = work(order, r, next);
    ranks_[r] = state;
  }
  trial_value_ = run(order, bound);
  if (objective_ == Objective::Span && exceeding_ < order.size())
    trial_value_ = start_later(order, bound);
  return trial_value_;
}

void Evaluator::keep(const JobOrder& order) {
  if (objective_ == Objective::Span && trial_value_ < std::numeric_limits<double>::infinity()) {
    const CycleRatio span = find_span(order);
    trial_value_ = span.value();
    deciding_rank_ = span.rank;
  }
  if (unit_) unit_->keep(order);
  std::swap(end_, trial_);
  std::swap(rank_ends_, trial_ends_);
  std::swap(starts_, trial_starts_);
  order_ = order;
  objective_value_ = trial_value_;
}

/// The run that exceeded the bound did so from the starts of the current order; others may do.
double Evaluator::start_later(const JobOrder& order, double bound) {
  constexpr int kTries = 2;
  find_places(order);
  const double none = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kTries && exceeding_ < order.size(); ++i) {
    const std::size_t rank = job_.rank(order[exceeding_]);
    if (origin(order, exceeding_) == rank) return none;
    if (run_whole(order, none) == none) return none;
    for (std::size_t r = 0; r < ranks_.size(); ++r)
      trial_starts_[r] = std::max(trial_starts_[r], trial_ends_[r].time - bound);
    trial_value_ = run_whole(order, bound);
  }
  return trial_value_;
}

/// The span of the order whose times from `trial_starts_` are in `trial_`, and starts for it.
CycleRatio Evaluator::find_span(const JobOrder& order) {
  find_places(order);
  Period period(trial_starts_, job_.is_whole());
  std::vector<Reach> reach(ranks_.size());
  while (true) {
    for (std::size_t r = 0; r < reach.size(); ++r) {
      const bool any = job_.first(r) < job_.first(r + 1);
      reach[r] = {trial_ends_[r].time, any ? origin(order, trial_ends_[r].at) : r};
    }
    if (!period.improve(reach)) return period.ratio();
    trial_starts_ = period.starts();
    run_whole(order, std::numeric_limits<double>::infinity());
  }
}

/// Of a run that has come to its end.
void Evaluator::find_ends(const JobOrder& order) {
  static const std::vector<double> none;
  step_end_.find(order, trial_, trial_starts_, unit_ ? unit_->trial_ : none, trial_ends_);
}

/// The rank whose start a longest path to the action at a place begins with.
std::size_t Evaluator::origin(const JobOrder& order, std::size_t at) const {
  while (true) {
    at = head(order, at);
    const std::size_t rank = job_.rank(order[at]);
    const bool first = at == job_.first(rank);
    double latest = first ? trial_starts_[rank] : trial_[order[at - 1]];
    Node before = kNoNode;
    for (std::size_t half = at; half <= tail(order, at); ++half)
      for (const Node producer : job_.producers(order[half])) {
        const double arrival = trial_[producer] + job_.delay(producer, order[half]);
        if (arrival <= latest) continue;
        latest = arrival;
        before = producer;
      }
    if (before == kNoNode && first) return rank;
    at = before == kNoNode ? at - 1 : place_[before];
  }
}

void Evaluator::find_places(const JobOrder& order) {
  place_.resize(order.size());
  for (std::size_t at = 0; at < order.size(); ++at)
    place_[order[at]] = static_cast<std::uint32_t>(at);
}

/// First place of a rank whose action ends at or after `time`: what ends before has started before.
Node Evaluator::first_not_before(std::size_t rank, double time) const {
  const auto begin = order_.begin() + job_.first(rank);
  const auto end = order_.begin() + job_.first(rank + 1);
  const auto found = std::partition_point(begin, end, [&](Node node) { return end_[node] < time; });
  return static_cast<Node>(found - order_.begin());
}

/// What a rank runs from a place on.
double Evaluator::work(const JobOrder& order, std::size_t rank, std::size_t from) const {
  double work = 0;
  for (std::size_t at = from; at < job_.first(rank + 1); at = tail(order, at) + 1)
    work += ticks(order, at);
  return work;
}

/// All of `order` from `trial_starts_`.
double Evaluator::run_whole(const JobOrder& order, double bound) {
  std::ranges::fill(trial_, kNotYet);
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    replay_.begin_at(r, job_.first(r));
    const double left = leads_.empty() ? job_.work(r) : work(order, r, job_.first(r));
    ranks_[r] = {.clock = trial_starts_[r], .left = left};
  }
  return run(order, bound);
}

double Evaluator::run(const JobOrder& order, double bound) {
  exceeding_ = order.size();
  const bool done = replay_.run_lists(
      [&](Rank rank, Node place, Node) {
        return leads_.empty() ? advance<false>(order, rank.index(), place, bound)
                              : advance<true>(order, rank.index(), place, bound);
      },
      [&](std::size_t, Node wanted) { return trial_[wanted] != kNotYet; });
  if (!done) return std::numeric_limits<double>::infinity();
  find_ends(order);
  double value = 0, plain = 0;  // with the sums and without
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    value = std::max(value, trial_ends_[r].time - trial_starts_[r]);
    plain = std::max(plain, ranks_[r].clock - trial_starts_[r]);
  }
  value += (passes_ - 1) * plain;
  const bool was_seen = passes_ == 1 && !job_.has_sums();  // when a pass began too late
  return value <= bound || was_seen ? value : std::numeric_limits<double>::infinity();
}

/// The first producer that has not run, or kNoNode with `begin` moved to when all have arrived.
inline Node Evaluator::inputs(Node node, double& begin) const {
  return wait_for(job_.producers(node), begin, [&](Node producer) {
    const double end = trial_[producer];
    return end == kNotYet ? kNotYet : std::max(0.0, end + job_.delay(producer, node));
  });
}

/// Runs a rank as far as it gets; stops the run when the objective must exceed the bound.
template <bool kPairs>
Halt Evaluator::advance(const JobOrder& order, std::size_t rank, Node place, double bound) {
  RankState& state = ranks_[rank];
  const Node from = place, last = job_.first(rank + 1);
  Node wanted = kNoNode;
  for (; place < last; ++place) {
    const Node node = order[place];
    const bool pair = kPairs && leads_[node];
    double begin = state.clock;
    wanted = inputs(node, begin);
    if (pair && wanted == kNoNode) wanted = inputs(order[place + 1], begin);
    if (wanted != kNoNode) break;
    if (passes_ * (begin + state.left - trial_starts_[rank]) > bound) {
      exceeding_ = place;
      replay_.stop();
      break;
    }
    const double taken = pair ? job_.pair_ticks(node, order[place + 1]) : job_.ticks(node);
    state.clock = trial_[node] = begin + taken;
    state.left -= taken;
    if (pair) trial_[order[++place]] = state.clock;
  }
  job_.spend(1 + place - from);
  return {place, wanted, wanted == kNoNode ? rank : job_.rank(wanted)};
}

Figures Evaluator::figures(const JobOrder& order) {
  Figures figures;
  figures.feasible = objective_value_ < std::numeric_limits<double>::infinity();
  if (!figures.feasible) return figures;
  figures.peak = peak(order);
  begin(order);
  double first = std::numeric_limits<double>::infinity(), last = 0, plain = 0;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    if (job_.first(r) == job_.first(r + 1)) continue;
    const Node begin = job_.first(r);
    first = std::min(first, trial_[order[begin]] - ticks(order, begin));
    last = std::max(last, trial_ends_[r].time);
    plain = std::max(plain, ranks_[r].clock);
  }
  figures.makespan = last - first;
  figures.step = (job_.passes() - 1) * (plain - first) + figures.makespan;
  figures.span = objective_ == Objective::Span ? objective_value_ : find_span(order).value();
  return figures;
}

double Evaluator::peak(const JobOrder& order) const {
  double most = 0;
  for (std::size_t r = 0; r < ranks_.size(); ++r) most = std::max(most, peak(order, r));
  return most;
}

double Evaluator::peak(const JobOrder& order, std::size_t rank) const {
  double memory = 0, peak = 0;
  for (std::size_t at = job_.first(rank); at < job_.first(rank + 1); ++at) {
    const Node node = order[at];
    const bool pair = leads(node);
    peak = std::max(peak, memory + (pair ? job_.pair_room(node, order[at + 1]) : job_.room(node)));
    memory += job_.memory(node);
    if (pair) memory += job_.memory(order[++at]);
  }
  return peak;
}

double Evaluator::idle_before(const JobOrder& order, std::size_t at) const {
  const std::size_t rank = job_.rank(order[at]);
  const double free = at == job_.first(rank) ? starts_[rank] : end(order[at - 1]);
  return std::max(0.0, start(order[at]) - free);
}

}  // namespace millrace::plan
