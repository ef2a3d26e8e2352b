// Builds the chains, sorts them, and evaluates Jackson's preemptive schedule per rank.
#include "plan/search/relaxation.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <queue>
#include <tuple>

#include "plan/schedules/list_order.hpp"

namespace millrace::plan {

double one_rank_bound(std::vector<HeadTail>& jobs) {
  std::ranges::sort(jobs, {}, &HeadTail::head);
  // Ready jobs, longest tail first; `second` is the time still to run.
  std::priority_queue<std::pair<double, double>> ready;
  double time = -std::numeric_limits<double>::infinity(), bound = 0;
  std::size_t next = 0;
  while (next < jobs.size() || !ready.empty()) {
    if (ready.empty()) time = std::max(time, jobs[next].head);
    while (next < jobs.size() && jobs[next].head <= time) {
      ready.emplace(jobs[next].tail, jobs[next].ticks);
      ++next;
    }
    const auto [tail, left] = ready.top();
    ready.pop();
    const double until = next < jobs.size() ? jobs[next].head : time + left;
    if (time + left <= until) {
      time += left;
      bound = std::max(bound, time + tail);
    } else {
      ready.emplace(tail, left - (until - time));
      time = until;
    }
  }
  return bound;
}

namespace {

/// A bound looks at this many actions, lane by lane.
constexpr std::size_t kLaneActions = 2'000'000;

/// All actions of one stage of one replica, by kind, micro-batches ascending.
struct StageLists {
  std::vector<Node> forward, input, weight, backward;
};

using StageKey = std::pair<std::uint8_t, Stage>;

std::map<StageKey, StageLists> by_stage(const Job& job) {
  std::map<StageKey, StageLists> stages;
  for (Node node = 0; node < job.size(); ++node) {
    const Action& action = job.action(node);
    StageLists& lists = stages[{action.replica_number, action.stage}];
    if (action.op == Op::Forward) lists.forward.push_back(node);
    if (action.op == Op::BackwardInput) lists.input.push_back(node);
    if (action.op == Op::BackwardWeight) lists.weight.push_back(node);
    if (action.op == Op::Backward) lists.backward.push_back(node);
  }
  for (auto& [key, lists] : stages)
    for (auto* list : {&lists.forward, &lists.input, &lists.weight, &lists.backward})
      std::ranges::sort(*list, {}, [&](Node node) { return job.action(node).micro_batch; });
  return stages;
}

/// What a rank must have free while an I (or B) runs.
double inside(const Job& job, Node backward) {
  return std::max(0.0, job.room(backward));
}

/// Least number of ended I (first) and W (second) that leave room for forward number j (from 0),
/// and for every I that comes after it. W are at most I.
std::pair<int, int> least_ended(const Job& job, const StageLists& lists, int j, double limit) {
  const double forward = job.memory(lists.forward.front());
  const double input = job.memory(lists.input.front());
  const double weight = job.memory(lists.weight.front());
  const double held = (j + 1) * forward;
  int inputs = 0, weights = 0;
  const double most = held + inside(job, lists.input.front());
  const double freed = input + std::min(0.0, weight);
  while (inputs <= j && !within_limit(most + inputs * freed, limit)) ++inputs;
  const auto best = [&](int w) { return held + w * weight + (input <= 0 ? j : w) * input; };
  while (weights <= j && !within_limit(best(weights), limit)) ++weights;
  return {inputs, weights};
}

/// As least_ended where backwards are whole: the number of ended B.
int least_backwards(const Job& job, const StageLists& lists, int j, double limit) {
  const double forward = job.memory(lists.forward.front());
  const double backward = job.memory(lists.backward.front());
  const double most = (j + 1) * forward + inside(job, lists.backward.front());
  int ended = 0;
  while (ended <= j && !within_limit(most + ended * backward, limit)) ++ended;
  return ended;
}

/// Least number of ended W that leave room for I number j, before which j of its kind have run.
int least_weights(const Job& job, const StageLists& lists, int j, double limit) {
  const double most = (j + 1) * job.memory(lists.forward.front()) +
                      j * job.memory(lists.input.front()) + inside(job, lists.input.front());
  int weights = 0;
  while (weights <= j && !within_limit(most + weights * job.memory(lists.weight.front()), limit))
    ++weights;
  return weights;
}

/// Whether a micro-batch never holds less than nothing, up to rounding: then what the other stages
/// of a rank hold can be left out of a bound.
bool holds_nothing_or_more(const Job& job, const StageLists& lists) {
  double level = 0, most = 0;
  for (const auto* list : {&lists.forward, &lists.input, &lists.weight, &lists.backward}) {
    if (list->empty()) continue;
    level += job.memory(list->front());
    most = std::max(most, level);
    if (level < -1e-9 * most) return false;
  }
  return true;
}

using Pair = std::pair<Node, Node>;  // a node, and what must end before it

/// What must end before each forward and I of a stage so that the limit holds; false when one never
/// fits.
bool make_room(const Job& job, const StageLists& lists, double limit, std::vector<Pair>& pairs) {
  const bool whole = lists.input.empty();
  const std::vector<Node>& first = whole ? lists.backward : lists.input;
  if (lists.forward.empty() || (whole ? lists.backward : lists.weight).empty()) return true;
  if (!within_limit(job.memory(lists.forward.front()) + job.room(first.front()), limit))
    return false;
  for (std::size_t at = 0; at < lists.forward.size(); ++at) {
    const auto j = static_cast<int>(at);
    const auto [inputs, weights] = whole ? std::pair(least_backwards(job, lists, j, limit), 0)
                                         : least_ended(job, lists, j, limit);
    if (inputs > j || weights > j) return false;
    const auto last = [](int n) { return static_cast<std::size_t>(n - 1); };
    if (inputs > 0) pairs.emplace_back(lists.forward[at], first[last(inputs)]);
    if (weights > 0) pairs.emplace_back(lists.forward[at], lists.weight[last(weights)]);
    if (whole || inside(job, first.front()) == 0) continue;  // an I finds the room of its forward
    const int before = least_weights(job, lists, j, limit);
    if (before > j) return false;
    if (before > 0) pairs.emplace_back(lists.input[at], lists.weight[last(before)]);
  }
  return true;
}

}  // namespace

Relaxation::Relaxation(const Job& job, Objective objective, double memory_limit)
    : job_(job), lanes_(job, objective), limit_(memory_limit) {
  chain();
  if (fits_) sort_topologically();
}

void Relaxation::chain() {
  chain_start_.assign(job_.size() + 1, 0);
  if (job_.shape().slices > 1) return;  // slices differ in cost: none may stand for another
  std::vector<Pair> pairs;
  const auto stages = by_stage(job_);
  const bool limited = limit_ < std::numeric_limits<double>::infinity() &&
                       std::ranges::all_of(stages, [&](const auto& stage) {
                         return holds_nothing_or_more(job_, stage.second);
                       });
  for (const auto& [key, lists] : stages) {
    for (const auto* list : {&lists.forward, &lists.input, &lists.weight, &lists.backward})
      for (std::size_t j = 1; j < list->size(); ++j) pairs.emplace_back((*list)[j], (*list)[j - 1]);
    const std::size_t m = lists.forward.size();
    job_.spend(3 * m);
    if (!limited) continue;
    job_.spend(m * m / 16);  // the room of each forward is searched
    fits_ = make_room(job_, lists, limit_, pairs);
    if (!fits_) return;
  }
  std::ranges::sort(pairs);
  for (const auto& [node, before] : pairs) {
    ++chain_start_[node + 1];
    chained_.push_back(before);
  }
  for (std::size_t i = 0; i < job_.size(); ++i) chain_start_[i + 1] += chain_start_[i];
}

void Relaxation::sort_topologically() {
  std::vector<std::uint32_t> missing(job_.size());
  std::vector<std::vector<Node>> after(job_.size());
  for (Node node = 0; node < job_.size(); ++node) {
    missing[node] = static_cast<std::uint32_t>(job_.producers(node).size() + chained(node).size());
    for (const Node before : chained(node)) after[before].push_back(node);
    if (missing[node] == 0) topological_.push_back(node);
  }
  for (std::size_t i = 0; i < topological_.size(); ++i) {
    job_.spend(2);
    const Node node = topological_[i];
    const auto release = [&](Node next) {
      if (--missing[next] == 0) topological_.push_back(next);
    };
    for (const Node next : job_.consumers(node)) release(next);
    for (const Node next : after[node]) release(next);
  }
}

std::vector<double> Relaxation::heads(std::size_t lane) const {
  std::vector<double> head(job_.size());
  for (const Node node : topological_) {
    job_.spend(2);
    head[node] = lanes_.edge(lane, job_.rank(node));
    for (const Node before : job_.producers(node))
      head[node] =
          std::max(head[node], head[before] + job_.ticks(before) + job_.delay(before, node));
    for (const Node before : chained(node))
      head[node] = std::max(head[node], head[before] + job_.ticks(before));
  }
  return head;
}

std::vector<double> Relaxation::tails(std::size_t lane) const {
  std::vector<double> tail(job_.size());
  for (Node node = 0; node < job_.size(); ++node) tail[node] = lanes_.edge(lane, job_.rank(node));
  for (std::size_t i = topological_.size(); i-- > 0;) {
    job_.spend(2);
    const Node node = topological_[i];
    const double from_start = tail[node] + job_.ticks(node);
    for (const Node before : job_.producers(node))
      tail[before] = std::max(tail[before], from_start + job_.delay(before, node));
    for (const Node before : chained(node)) tail[before] = std::max(tail[before], from_start);
  }
  return tail;
}

/// Lanes that are looked at: as many as the time of a bound allows, the rank of the first stage
/// before the busiest.
std::vector<std::size_t> Relaxation::telling_lanes() const {
  std::vector<std::size_t> lanes(lanes_.count());
  std::iota(lanes.begin(), lanes.end(), std::size_t{0});
  const std::size_t most =
      std::max<std::size_t>(1, kLaneActions / std::max<std::size_t>(1, job_.size()));
  if (most >= lanes.size()) return lanes;
  const std::size_t front = job_.shape().placement.rank(Stage{0}).index();
  std::ranges::stable_sort(lanes, [&](std::size_t a, std::size_t b) {
    return std::tuple(a != front, -job_.work(a)) < std::tuple(b != front, -job_.work(b));
  });
  lanes.resize(most);
  return lanes;
}

double Relaxation::lane_bound(std::size_t lane) const {
  const std::vector<double> head = heads(lane), tail = tails(lane);
  std::vector<std::vector<HeadTail>> ranks(static_cast<std::size_t>(job_.ranks()));
  for (const Node node : topological_)
    if (std::isfinite(head[node] + tail[node]))
      ranks[job_.rank(node)].push_back({head[node], job_.ticks(node), tail[node]});
  double bound = 0;
  for (auto& jobs : ranks) bound = std::max(bound, one_rank_bound(jobs));
  return bound;
}

double Relaxation::bound() const {
  if (!fits_) return std::numeric_limits<double>::infinity();
  double bound = 0;
  for (std::size_t r = 0; r < static_cast<std::size_t>(job_.ranks()); ++r)
    bound = std::max(bound, job_.work(r));
  for (const std::size_t lane : telling_lanes()) bound = std::max(bound, lane_bound(lane));
  return bound;
}

}  // namespace millrace::plan
