// The clock's fast path: an action takes its ticks and its result arrives after one latency, with
// no pairs, reductions, speeds or factors. The replay touches as few arrays as possible, because
// with many ranks each of them is a cache miss; the intervals are written afterwards, list by list.
#include <algorithm>

#include "plan/clock.hpp"

namespace millrace::plan {

bool Clock::is_plain() const {
  const bool pairs = cost_.pair && graph_.has_pairs();
  return plain_links_ && !pairs && !graph_.has_joint_actions() && cost_.rank_speed.empty() &&
         options_.factor.empty();
}

bool Clock::run_plain() {
  const double* const ticks = ticks_.data();
  double* const arrival = arrival_.data();
  const bool finished =
      replay_.run_lists([this, ticks, arrival](Rank rank, Node node, Node end, Node& wanted) {
        const Action* action = graph_.program().ranks[rank.index()].data();
        action += node - graph_.first(rank);
        double clock = clock_[rank.index()];
        for (; node < end; ++node, ++action) {
          for (const Node producer : graph_.producers(node)) {
            if (arrival[producer] == kNotYet) wanted = producer;
            clock = std::max(clock, arrival[producer]);
          }
          if (wanted != kNoNode) break;
          clock += ticks[ticks_index(*action)];
          arrival[node] = clock + flight_[static_cast<std::size_t>(action->op)];
        }
        clock_[rank.index()] = clock;
        return node;
      });
  if (finished) write_plain();
  return finished;
}

/// The same sums again, now that all arrivals are known.
void Clock::write_plain() {
  const auto& lists = graph_.program().ranks;
  Node node = 0;
  for (std::size_t r = 0; r < lists.size(); ++r) {
    double clock = options_.start.empty() ? 0 : options_.start[r];
    auto& intervals = timeline_.ranks[r];
    intervals.reserve(lists[r].size());
    for (const Action& action : lists[r]) {
      double begin = clock;
      for (const Node producer : graph_.producers(node++))
        begin = std::max(begin, arrival_[producer]);
      const double end = begin + ticks_[ticks_index(action)];
      intervals.push_back({is_receive(action.op) ? clock : begin, end});
      clock = end;
    }
  }
}

}  // namespace millrace::plan
