// Follows a rank's list back to where its sums begin, and the stages' meetings forward from there.
#include <algorithm>
#include <numeric>

#include "plan/model/stage_sums.hpp"
#include "plan/search/evaluator.hpp"

namespace millrace::plan {

namespace {

constexpr std::size_t kNowhere = ~std::size_t{0};

void wait_for(RankEnd& end, const RankEnd& other, double way = 0) {
  if (other.time + way > end.time) end = {other.time + way, other.at};
}

}  // namespace

StepEnd::StepEnd(const Job& job) : job_(job) {
  if (!job.has_sums()) return;
  const auto copies = static_cast<std::size_t>(job.shape().stages() * job.shape().replicas());
  last_.resize(copies);
  sums_.resize(copies);
  ticks_.resize(job.meetings().size());
  meetings_.resize(ticks_.size());
}

void StepEnd::find(const JobOrder& order,
                   const std::vector<double>& ends,
                   const std::vector<double>& starts,
                   const std::vector<double>& unit_ends,
                   std::vector<RankEnd>& result) {
  result.resize(starts.size());
  std::ranges::fill(last_, kNowhere);
  for (std::size_t r = 0; r < result.size(); ++r) {
    result[r] = {starts[r], order.size()};
    if (job_.first(r) == job_.first(r + 1)) continue;
    const std::size_t last = job_.first(r + 1) - 1;
    result[r] = {ends[order[last]], last};
    if (job_.has_sums()) find_sums(order, ends, r);
  }
  if (job_.unit_run() == nullptr) {
    for (std::size_t copy = 0; copy < last_.size(); ++copy)
      if (last_[copy] != kNowhere) wait_for(result[job_.rank(order[last_[copy]])], sums_[copy]);
    return;
  }
  sort_meetings(order, unit_ends);
  for (const std::size_t meeting : meetings_) meet(job_.meetings()[meeting], result);
}

/// The sums of a rank's stages, one behind the other on its link.
void StepEnd::find_sums(const JobOrder& order, const std::vector<double>& ends, std::size_t rank) {
  begins_.clear();
  const auto held = static_cast<std::size_t>(job_.shape().chunks());
  const std::size_t first = job_.first(rank), behind = job_.first(rank + 1);
  for (std::size_t at = behind; at-- > first && begins_.size() < held;) {
    const Action& action = job_.action(order[at]);
    const std::size_t copy = job_.copy(action.replica(), action.stage);
    if (!gives_weight_gradient(action.op) || last_[copy] != kNowhere) continue;
    last_[copy] = at;
    begins_.push_back(at);
  }
  SumLink link;
  std::size_t head = behind - 1;
  for (auto at = begins_.rbegin(); at != begins_.rend(); ++at) {
    const double ready = ends[order[*at]];
    const Action& action = job_.action(order[*at]);
    const Job::Sum& sum = job_.sum(action.replica(), action.stage);
    const Interval time = link.take(ready, sum.transfer, sum.delay);
    if (time.start <= ready) head = *at;
    sums_[job_.copy(action.replica(), action.stage)] = {time.end, head};
  }
}

/// As insert_reductions has them: by the end of the stages' last B or W in the unit run, then by
/// stage.
void StepEnd::sort_meetings(const JobOrder& order, const std::vector<double>& unit_ends) {
  for (std::size_t i = 0; i < ticks_.size(); ++i) {
    ticks_[i] = 0;
    for (const std::size_t copy : job_.meetings()[i].copies)
      if (last_[copy] != kNowhere) ticks_[i] = std::max(ticks_[i], unit_ends[order[last_[copy]]]);
  }
  std::iota(meetings_.begin(), meetings_.end(), std::size_t{0});
  std::ranges::stable_sort(meetings_, {}, [this](std::size_t meeting) { return ticks_[meeting]; });
}

/// Every copy gives its sum when its rank has come to it, and needs all others'.
void StepEnd::meet(const Job::Meeting& meeting, std::vector<RankEnd>& result) {
  const std::size_t n = meeting.copies.size();
  before_.resize(n);
  for (std::size_t i = 0; i < n; ++i) before_[i] = result[job_.rank_of_copy(meeting.copies[i])];
  for (std::size_t to = 0; to < n; ++to) {
    if (last_[meeting.copies[to]] == kNowhere) continue;
    RankEnd& end = result[job_.rank_of_copy(meeting.copies[to])];
    wait_for(end, sums_[meeting.copies[to]]);
    for (std::size_t from = 0; from < n; ++from) {
      const std::size_t copy = meeting.copies[from];
      if (job_.rank_of_copy(copy) == job_.rank_of_copy(meeting.copies[to])) continue;
      if (last_[copy] == kNowhere) continue;
      RankEnd leaves = before_[from];
      wait_for(leaves, sums_[copy]);
      wait_for(end, leaves, meeting.ways[from * n + to]);
    }
  }
}

}  // namespace millrace::plan
