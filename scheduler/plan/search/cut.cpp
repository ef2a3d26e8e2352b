// The exact solver's rules: branching on active schedules, clipping of times, the bound.
#include "plan/search/cut.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "plan/schedules/list_order.hpp"

namespace millrace::plan {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool at_most(std::span<const double> a, std::span<const double> b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (a[i] > b[i]) return false;
  return true;
}

}  // namespace

CutRules::CutRules(const Job& job, const Relaxation& relaxation, double limit)
    : job_(job),
      relaxation_(relaxation),
      limit_(limit),
      root_bound_(relaxation.bound()),
      lanes_(relaxation.lanes().count()),
      ranks_(static_cast<std::size_t>(job.ranks())),
      micro_batches_(static_cast<std::size_t>(job.shape().micro_batches)),
      class_of_(job.size()),
      index_of_(job.size()),
      memory_(ranks_),
      tail_(job.size() * lanes_),
      leads_(lanes_ * lanes_, -kInfinity),
      head_(job.size() * lanes_),
      ahead_(leads_),
      end_tail_(tail_),
      rank_jobs_(ranks_) {
  collect_classes(job);
  connect_classes(job);
  for (std::size_t lane = 0; lane < lanes_; ++lane) find_lane(lane);
  end_tail_ = tail_;
}

/// Tails of a lane, and how long after its start each other lane starts at least: every action of
/// that lane's rank does.
void CutRules::find_lane(std::size_t lane) {
  const std::vector<double> tails = relaxation_.tails(lane), heads = relaxation_.heads(lane);
  std::vector<double> first(ranks_, kInfinity);
  for (Node node = 0; node < job_.size(); ++node) {
    tail_[node * lanes_ + lane] = tails[node];
    double& earliest = first[job_.rank(node)];
    earliest = std::min(earliest, heads[node]);
  }
  for (std::size_t other = 0; other < lanes_; ++other)
    if (other != lane && first[other] < kInfinity) leads_[lane * lanes_ + other] = first[other];
}

void CutRules::collect_classes(const Job& job) {
  std::map<std::pair<Op, Stage>, std::vector<Node>> lists;
  for (Node node = 0; node < job.size(); ++node)
    lists[{job.action(node).op, job.action(node).stage}].push_back(node);
  entries_ = ranks_;
  for (auto& [key, nodes] : lists) {
    std::ranges::sort(nodes, {}, [&](Node node) { return job.action(node).micro_batch; });
    CutClass cls;
    cls.rank = job.rank(nodes.front());
    cls.ticks = job.ticks(nodes.front());
    cls.memory = job.memory(nodes.front());
    cls.room = job.room(nodes.front());
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
    for (const Node producer : job.producers(cls.nodes.front())) {
      cls.after.push_back(class_of_[producer]);
      if (job.rank(producer) == cls.rank) continue;
      cls.sender = class_of_[producer];
      cls.delay = job.delay(producer, cls.nodes.front());
      cls.arrivals = entries_;
      entries_ += micro_batches_;
    }
}

CutTimes CutRules::begin() const {
  CutTimes times(width(), -kInfinity);
  for (std::size_t r = 0; r < ranks_; ++r)
    for (std::size_t lane = 0; lane < lanes_; ++lane)
      times[r * lanes_ + lane] = relaxation_.lanes().edge(lane, r);
  return times;
}

bool CutRules::has_inputs(std::size_t cls, const CutCounts& counts) const {
  const std::size_t j = count(counts, cls);
  for (const std::size_t before : classes_[cls].after)
    if (count(counts, before) <= j) return false;
  return true;
}

bool CutRules::has_room(std::size_t cls) const {
  const CutClass& of = classes_[cls];
  return of.room <= 0 || within_limit(memory_[of.rank] + of.room, limit_);
}

double CutRules::start(std::size_t cls,
                       std::size_t index,
                       std::size_t lane,
                       std::span<const double> times) const {
  const CutClass& of = classes_[cls];
  const double clock = times[of.rank * lanes_ + lane];
  if (of.sender == CutClass::kNone) return clock;
  return std::max(clock, times[entry(cls, index) + lane]);
}

/// Whether the next action of `cls` may run before others of its rank as far as memory goes.
bool CutRules::may_move_up(std::size_t cls, const CutCounts& counts) const {
  const std::size_t rank = classes_[cls].rank;
  if (classes_[cls].memory <= 0 || limit_ == kInfinity) return true;
  double most = memory_[rank], passing = 0;
  for (std::size_t c = 0; c < classes_.size(); ++c) {
    if (classes_[c].rank != rank) continue;
    const double kept = std::max(0.0, classes_[c].memory);
    most += static_cast<double>(micro_batches_ - count(counts, c)) * kept;
    passing = std::max(passing, classes_[c].room - kept);
  }
  return within_limit(most + passing, limit_);
}

void CutRules::list_options(const CutCounts& counts, std::span<const double> times) {
  std::ranges::fill(memory_, 0);
  for (std::size_t c = 0; c < classes_.size(); ++c)
    memory_[classes_[c].rank] += static_cast<double>(count(counts, c)) * classes_[c].memory;
  options_.clear();
  option_times_.clear();
  for (std::size_t c = 0; c < classes_.size(); ++c) {
    if (count(counts, c) == micro_batches_ || !has_inputs(c, counts) || !has_room(c)) continue;
    options_.push_back({c, option_times_.size()});
    for (const double after : {0.0, classes_[c].ticks})
      for (std::size_t lane = 0; lane < lanes_; ++lane)
        option_times_.push_back(start(c, count(counts, c), lane, times) + after);
  }
}

/// Whether `other` may have to run before `first` can: on its rank, it can start before the end.
bool CutRules::conflict(const Option& first, const Option& other) const {
  if (classes_[other.cls].rank != classes_[first.cls].rank) return false;
  return other.cls == first.cls || !at_most(end_of(first), start_of(other));
}

/// Whether what still lacks inputs on the rank of `first` cannot start before that ends.
bool CutRules::waits_for_none(const Option& first, const CutCounts& counts) const {
  for (std::size_t c = 0; c < classes_.size(); ++c) {
    if (classes_[c].rank != classes_[first.cls].rank || count(counts, c) == micro_batches_ ||
        has_inputs(c, counts))
      continue;
    const Node node = classes_[c].nodes[count(counts, c)];
    if (!at_most(end_of(first), {head_.data() + node * lanes_, lanes_})) return false;
  }
  return true;
}

/// One rank alone, where one of its actions fits before whatever is not tried: the fewest of all
/// such.
bool CutRules::branch_on_one_rank(const CutCounts& counts, std::vector<std::size_t>& out) {
  for (const Option& first : options_) {
    if (!may_move_up(first.cls, counts) || !waits_for_none(first, counts)) continue;
    const auto size = static_cast<std::size_t>(std::ranges::count_if(
        options_, [&](const Option& other) { return conflict(first, other); }));
    if (!out.empty() && size >= out.size()) continue;
    out.clear();
    for (const Option& other : options_)
      if (conflict(first, other)) out.push_back(other.cls);
  }
  return !out.empty();
}

/// Whatever can start before the earliest end, on its rank; of several lanes, whatever may be it.
void CutRules::branch_on_earliest(const CutCounts& counts, std::vector<std::size_t>& out) {
  while (!options_.empty()) {
    earliest_.clear();
    for (const Option& option : options_)
      if (std::ranges::none_of(options_, [&](const Option& other) {
            return at_most(end_of(other), end_of(option)) &&
                   (other.cls < option.cls || !at_most(end_of(option), end_of(other)));
          }))
        earliest_.push_back(option);
    bool complete = true;
    for (const Option& first : earliest_)
      complete = complete && may_move_up(first.cls, counts) &&
                 (!job_.has_recompute() || waits_for_none(first, counts));
    const auto tried = [&](const Option& option) {
      return (lanes_ > 1 && !complete) || std::ranges::any_of(earliest_, [&](const Option& first) {
               return conflict(first, option);
             });
    };
    for (const Option& option : options_)
      if (tried(option)) out.push_back(option.cls);
    if (complete) return;
    std::erase_if(options_, tried);
  }
}

void CutRules::branches(const CutCounts& counts,
                        std::span<const double> times,
                        std::vector<std::size_t>& out) {
  out.clear();
  list_options(counts, times);
  if (lanes_ > 1 || job_.has_recompute()) find_heads(counts, times);
  if (lanes_ > 1 && branch_on_one_rank(counts, out)) return;
  branch_on_earliest(counts, out);
}

void CutRules::apply(std::size_t cls, CutCounts& counts, std::span<double> times) const {
  const CutClass& of = classes_[cls];
  const std::size_t j = count(counts, cls);
  counts[cls] = static_cast<char>(j + 1);
  for (std::size_t lane = 0; lane < lanes_; ++lane) {
    const double end = start(cls, j, lane, times) + of.ticks;
    times[of.rank * lanes_ + lane] = end;
    if (of.sender != CutClass::kNone) times[entry(cls, j) + lane] = -kInfinity;
    for (std::size_t c = 0; c < classes_.size(); ++c)
      if (classes_[c].sender == cls) times[entry(c, j) + lane] = end + classes_[c].delay;
  }
}

/// Earliest start of everything that is left, ranks working on any number of actions at once.
void CutRules::find_heads(const CutCounts& counts, std::span<const double> times) {
  left_.clear();
  for (const Node node : relaxation_.topological()) {
    if (has_run(node, counts)) continue;
    left_.push_back(node);
    double* const head = head_.data() + node * lanes_;
    for (std::size_t lane = 0; lane < lanes_; ++lane)
      head[lane] = start(class_of_[node], index_of_[node], lane, times);
    const auto follow = [&](Node before) {
      if (has_run(before, counts)) return;
      const double delay = job_.delay(before, node);
      const double* const from = head_.data() + before * lanes_;
      for (std::size_t lane = 0; lane < lanes_; ++lane)
        head[lane] = std::max(head[lane], from[lane] + job_.ticks(before) + delay);
    };
    for (const Node producer : job_.producers(node)) follow(producer);
    for (const Node before : relaxation_.chained(node)) follow(before);
  }
}

/// How long after the start of a lane each other one starts at least, if no lane reaches `value`:
/// a path from the first's start to the other's end allows the other no earlier start. False when
/// such paths close a cycle, so that some lane does reach it.
bool CutRules::relate_starts(std::span<const double> times, double value) {
  ahead_ = leads_;
  const auto path = [&](std::size_t from, std::size_t to, double ticks) {
    double& lead = ahead_[from * lanes_ + to];
    lead = std::max(lead, ticks - value);
  };
  for (std::size_t r = 0; r < ranks_; ++r)
    for (std::size_t from = 0; from < lanes_; ++from) path(from, r, times[r * lanes_ + from]);
  for (const Node node : left_)
    for (std::size_t from = 0; from < lanes_; ++from)
      for (std::size_t to = 0; to < lanes_; ++to)
        path(from, to, head_[node * lanes_ + from] + job_.ticks(node) + tail_[node * lanes_ + to]);
  for (std::size_t by = 0; by < lanes_; ++by)
    for (std::size_t from = 0; from < lanes_; ++from)
      for (std::size_t to = 0; to < lanes_; ++to) {
        double& lead = ahead_[from * lanes_ + to];
        lead = std::max(lead, ahead_[from * lanes_ + by] + ahead_[by * lanes_ + to]);
      }
  for (std::size_t lane = 0; lane < lanes_; ++lane)
    if (ahead_[lane * lanes_ + lane] >= 0) return false;
  return true;
}

/// Raises a time to what it is anyway, by the other lanes' start.
void CutRules::raise(std::span<double> lanes) const {
  for (std::size_t from = 0; from < lanes_; ++from)
    for (std::size_t to = 0; to < lanes_; ++to)
      lanes[from] = std::max(lanes[from], lanes[to] + ahead_[from * lanes_ + to]);
}

/// The same of the time left until the other lanes' end.
void CutRules::raise_tails(std::span<double> lanes) const {
  for (std::size_t to = 0; to < lanes_; ++to)
    for (std::size_t from = 0; from < lanes_; ++from)
      lanes[to] = std::max(lanes[to], lanes[from] + ahead_[from * lanes_ + to]);
}

/// Forgets arrivals that no longer matter: in the past, or hidden behind the rank's own work.
void CutRules::clip(const CutCounts& counts, std::span<double> times) const {
  for (std::size_t c = 0; c < classes_.size(); ++c) {
    const CutClass& of = classes_[c];
    if (of.sender == CutClass::kNone) continue;
    for (std::size_t lane = 0; lane < lanes_; ++lane) {
      double free = times[of.rank * lanes_ + lane];
      for (std::size_t j = count(counts, c); j < count(counts, of.sender); ++j) {
        double& arrival = times[entry(c, j) + lane];
        if (arrival <= free) arrival = -kInfinity;
        free = std::max(free, arrival) + of.ticks;
      }
    }
  }
}

/// The bound of every rank's work that is left, in one lane.
double CutRules::lane_bound(std::size_t lane) {
  for (auto& jobs : rank_jobs_) jobs.clear();
  for (const Node node : left_) {
    const double head = head_[node * lanes_ + lane], tail = end_tail_[node * lanes_ + lane];
    if (std::isfinite(head + tail))
      rank_jobs_[job_.rank(node)].push_back({head, job_.ticks(node), tail});
  }
  double bound = 0;
  for (auto& jobs : rank_jobs_) bound = std::max(bound, one_rank_bound(jobs));
  return bound;
}

double CutRules::settle(const CutCounts& counts, std::span<double> times, double value) {
  find_heads(counts, times);
  if (lanes_ > 1) {
    if (!relate_starts(times, value)) return value;
    end_tail_ = tail_;
    for (const Node node : left_) {
      raise({head_.data() + node * lanes_, lanes_});
      raise_tails({end_tail_.data() + node * lanes_, lanes_});
    }
  }
  double bound = root_bound_;
  for (std::size_t lane = 0; lane < lanes_; ++lane) bound = std::max(bound, lane_bound(lane));
  first_.assign(ranks_ * lanes_, kInfinity);
  for (const Node node : left_)
    for (std::size_t lane = 0; lane < lanes_; ++lane) {
      double& head = first_[job_.rank(node) * lanes_ + lane];
      head = std::min(head, head_[node * lanes_ + lane]);
    }
  for (std::size_t r = 0; r < ranks_; ++r) {
    const std::span<double> clock = times.subspan(r * lanes_, lanes_);
    if (first_[r * lanes_] == kInfinity) {  // the rank has ended: it matters from the bound on
      double& end = clock[lanes_ == 1 ? 0 : r];
      bound = std::max(bound, end);
      end = std::max(end, root_bound_);
    } else {
      for (std::size_t lane = 0; lane < lanes_; ++lane)
        clock[lane] = std::max(clock[lane], first_[r * lanes_ + lane]);
    }
  }
  if (lanes_ > 1)
    for (std::size_t at = 0; at < entries_; ++at) raise(times.subspan(at * lanes_, lanes_));
  clip(counts, times);
  return bound;
}

}  // namespace millrace::plan
