// The clock's fast path: an action takes its ticks and its result arrives after one latency, with
// no pairs, reductions, speeds or factors. The replay touches as few arrays as possible, because
// with many ranks each of them is a cache miss: the intervals themselves say what has run.

#include "plan/simulate/clock.hpp"

namespace millrace::plan {

namespace {

/// With many lists the caches need a hint of what comes next, this many actions ahead.
constexpr int kAhead = 16;

}  // namespace

bool Clock::is_plain() const {
  return plain_links_ && !pairs_ && !graph_.has_joint_actions() && cost_.rank_speed.empty() &&
         options_.factor.empty() && options_.ticks.empty();
}

/// Runs one list from `node` on; see Replay::run_lists.
inline Halt Clock::run_list(Rank rank, Node node, Node end) {
  const std::size_t r = rank.index();
  const Node first = graph_.first(rank);
  const std::size_t position = node - first;
  const Action* action = graph_.program().ranks[r].data() + position;
  Interval* interval = timeline_.ranks[r].data() + position;
  const Node* const next = replay_.next().data();
  const double* const ticks = ticks_.data();
  const std::size_t pieces = pieces_;
  const auto slices = static_cast<std::size_t>(cost_.slices);
  const bool stands = options_.stands_in_receives;
  double clock = clock_[r];
  Node wanted = kNoNode;
  for (; node < end; ++node, ++action, ++interval) {
    __builtin_prefetch(action + kAhead);
    __builtin_prefetch(interval + kAhead, 1);
    graph_.prefetch(node + 4 * kAhead);
    double begin = clock;
    wanted = plan::wait_for(graph_.producers(node), begin, [&](Node producer) {
      const std::size_t holder =
          producer >= first && producer < end ? r : replay_.holder(r, producer);
      if (producer >= (holder == r ? node : next[holder])) return kNotYet;
      return arrival_plain(holder, producer);
    });
    if (wanted != kNoNode) break;
    if (is_receive(action->op)) {
      *interval = {clock, begin};
      if (stands) clock = begin;
      continue;
    }
    clock = begin + ticks[static_cast<std::size_t>(action->op) * pieces +
                          action->stage.index() * slices + action->slice.index()];
    *interval = {begin, clock};
  }
  clock_[r] = clock;
  return wanted == kNoNode ? Halt{node} : Halt{node, wanted, replay_.holder(r, wanted)};
}

/// When the result of an action that has run is where it is needed.
inline double Clock::arrival_plain(std::size_t holder, Node producer) const {
  const std::size_t position = producer - graph_.first(Rank{static_cast<std::int32_t>(holder)});
  const double end = timeline_.ranks[holder][position].end;
  if (cost_.latency == 0) return end;
  const Op op = graph_.program().ranks[holder][position].op;
  return end + flight_[static_cast<std::size_t>(op)];
}

bool Clock::run_plain() {
  const auto& lists = graph_.program().ranks;
  for (std::size_t r = 0; r < lists.size(); ++r) timeline_.ranks[r].resize(lists[r].size());
  return replay_.run_lists(
      [this](Rank rank, Node node, Node end) { return run_list(rank, node, end); });
}

}  // namespace millrace::plan
