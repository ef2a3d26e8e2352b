// The exact solver's rules: branching on active schedules, clipping of times, the bound.
#include "plan/search/cut.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "plan/search/list_order.hpp"

namespace millrace::plan {

namespace {
constexpr double kInfinity = std::numeric_limits<double>::infinity();
}  // namespace

CutRules::CutRules(const Job& job, const Relaxation& relaxation, Objective objective, double limit)
    : job_(job),
      relaxation_(relaxation),
      objective_(objective),
      limit_(limit),
      root_bound_(relaxation.bound()),
      ranks_(static_cast<std::size_t>(job.ranks())),
      micro_batches_(static_cast<std::size_t>(job.shape().micro_batches)),
      class_of_(job.size()),
      index_of_(job.size()),
      memory_(ranks_),
      head_(job.size()),
      rank_jobs_(ranks_) {
  collect_classes(job);
  connect_classes(job);
}

void CutRules::collect_classes(const Job& job) {
  std::map<std::pair<Op, Stage>, std::vector<JobNode>> lists;
  for (JobNode node = 0; node < job.size(); ++node)
    lists[{job.action(node).op, job.action(node).stage}].push_back(node);
  width_ = ranks_;
  for (auto& [key, nodes] : lists) {
    std::ranges::sort(nodes, {}, [&](JobNode node) { return job.action(node).micro_batch; });
    CutClass cls;
    cls.rank = job.rank(nodes.front());
    cls.ticks = job.ticks(nodes.front());
    cls.memory = job.memory(nodes.front());
    for (std::size_t j = 0; j < nodes.size(); ++j) {
      class_of_[nodes[j]] = classes_.size();
      index_of_[nodes[j]] = j;
    }
    cls.nodes = std::move(nodes);
    classes_.push_back(std::move(cls));
  }
}

void CutRules::connect_classes(const Job& job) {
  for (CutClass& cls : classes_)
    for (const JobEdge& edge : job.producers(cls.nodes.front())) {
      cls.after.push_back(class_of_[edge.node]);
      if (job.rank(edge.node) == cls.rank) continue;
      cls.sender = class_of_[edge.node];
      cls.delay = edge.delay;
      cls.arrivals = width_;
      width_ += micro_batches_;
    }
}

bool CutRules::available(std::size_t cls, const CutCounts& counts) const {
  const std::size_t j = count(counts, cls);
  if (j == micro_batches_) return false;
  const CutClass& of = classes_[cls];
  for (const std::size_t before : of.after)
    if (count(counts, before) <= j) return false;
  return of.memory <= 0 || within_limit(memory_[of.rank] + of.memory, limit_);
}

double CutRules::start(std::size_t cls,
                       const CutCounts& counts,
                       std::span<const double> times) const {
  const CutClass& of = classes_[cls];
  const double clock = times[of.rank];
  if (of.sender == CutClass::kNone) return clock;
  return std::max(clock, times[of.arrivals + count(counts, cls)]);
}

/// Whether the next action of `cls` may run before others of its rank as far as memory goes.
bool CutRules::may_move_up(std::size_t cls, const CutCounts& counts) const {
  const std::size_t rank = classes_[cls].rank;
  if (classes_[cls].memory <= 0 || limit_ == kInfinity) return true;
  double most = memory_[rank];
  for (std::size_t c = 0; c < classes_.size(); ++c)
    if (classes_[c].rank == rank && classes_[c].memory > 0)
      most += static_cast<double>(micro_batches_ - count(counts, c)) * classes_[c].memory;
  return within_limit(most, limit_);
}

void CutRules::list_options(const CutCounts& counts, std::span<const double> times) {
  std::ranges::fill(memory_, 0);
  for (std::size_t c = 0; c < classes_.size(); ++c)
    memory_[classes_[c].rank] += static_cast<double>(count(counts, c)) * classes_[c].memory;
  options_.clear();
  for (std::size_t c = 0; c < classes_.size(); ++c) {
    if (!available(c, counts)) continue;
    const double begin = start(c, counts, times);
    options_.push_back({c, begin, begin + classes_[c].ticks});
  }
}

void CutRules::branches(const CutCounts& counts,
                        std::span<const double> times,
                        std::vector<std::size_t>& out) {
  out.clear();
  list_options(counts, times);
  while (!options_.empty()) {
    const Option first = *std::ranges::min_element(options_, {}, &Option::end);
    const std::size_t rank = classes_[first.cls].rank;
    const auto tried = [&](const Option& option) {
      return classes_[option.cls].rank == rank &&
             (option.start < first.end || option.cls == first.cls);
    };
    for (const Option& option : options_)
      if (tried(option)) out.push_back(option.cls);
    if (may_move_up(first.cls, counts)) return;
    std::erase_if(options_, tried);
  }
}

void CutRules::apply(std::size_t cls, CutCounts& counts, std::span<double> times) const {
  const CutClass& of = classes_[cls];
  const std::size_t j = count(counts, cls);
  const double end = start(cls, counts, times) + of.ticks;
  times[of.rank] = end;
  if (of.sender != CutClass::kNone) times[of.arrivals + j] = 0;
  counts[cls] = static_cast<char>(j + 1);
  for (const CutClass& consumer : classes_)
    if (consumer.sender == cls) times[consumer.arrivals + j] = end + consumer.delay;
}

/// Earliest start of everything that is left, ranks working on any number of actions at once.
void CutRules::find_heads(const CutCounts& counts, std::span<const double> times) {
  const auto has_run = [&](JobNode node) {
    return index_of_[node] < count(counts, class_of_[node]);
  };
  for (const JobNode node : relaxation_.topological()) {
    if (has_run(node)) continue;
    const CutClass& of = classes_[class_of_[node]];
    double head = times[of.rank];
    if (of.sender != CutClass::kNone) head = std::max(head, times[of.arrivals + index_of_[node]]);
    for (const JobEdge& edge : job_.producers(node))
      if (!has_run(edge.node))
        head = std::max(head, head_[edge.node] + job_.ticks(edge.node) + edge.delay);
    for (const JobNode before : relaxation_.chained(node))
      if (!has_run(before)) head = std::max(head, head_[before] + job_.ticks(before));
    head_[node] = head;
    rank_jobs_[of.rank].push_back({head, of.ticks, relaxation_.tail(node)});
  }
}

/// Forgets arrivals that no longer matter: in the past, or hidden behind the rank's own work.
void CutRules::clip(const CutCounts& counts, std::span<double> times) const {
  for (std::size_t c = 0; c < classes_.size(); ++c) {
    const CutClass& of = classes_[c];
    if (of.sender == CutClass::kNone) continue;
    double free = times[of.rank];
    for (std::size_t j = count(counts, c); j < count(counts, of.sender); ++j) {
      double& arrival = times[of.arrivals + j];
      if (arrival <= free) arrival = 0;
      free = std::max(free, arrival) + of.ticks;
    }
  }
}

double CutRules::settle(const CutCounts& counts, std::span<double> times) {
  for (auto& jobs : rank_jobs_) jobs.clear();
  find_heads(counts, times);
  double bound = root_bound_;
  for (std::size_t r = 0; r < ranks_; ++r) {
    const double offset = job_.offset(objective_, r);
    if (rank_jobs_[r].empty()) {
      bound = std::max(bound, times[r] - offset);
      times[r] = std::max(times[r], root_bound_ + offset);
      continue;
    }
    const auto first = std::ranges::min_element(rank_jobs_[r], {}, &HeadTail::head);
    times[r] = std::max(times[r], first->head);
    bound = std::max(bound, one_rank_bound(rank_jobs_[r]));
  }
  clip(counts, times);
  return bound;
}

}  // namespace millrace::plan
