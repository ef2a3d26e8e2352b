// The clock where ranks share processors. Passes begin in the order in which they could: a pass
// that is released later than another never begins before it, so the earliest of those that are
// released is next whatever comes after it, and nothing has to be undone. Times that only rounding
// tells apart are equal: else the last bit of a sum would choose between ranks.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <queue>
#include <utility>

#include "plan/simulate/clock.hpp"
#include "plan/verify/cycle.hpp"

namespace millrace::plan {

namespace {

template <class Value>
using Earliest = std::priority_queue<Value, std::vector<Value>, std::greater<>>;

constexpr double kRounding = 1e-12;  // of a time: above what sums of many passes are off by

bool takes_core(Op op) {
  return is_compute(op) || op == Op::OptimizerStep;
}

}  // namespace

/// One run of a clock whose processors are fewer than its ranks, of a program that can end.
class SharedCores {
 public:
  explicit SharedCores(Clock& clock)
      : clock_(clock),
        next_(clock.graph_.first().begin(), clock.graph_.first().end() - 1),
        wanted_(next_.size(), kNoNode),
        waiters_(next_.size()),
        posted_(next_.size()) {
    for (int core = 0; core < clock.cost_.cores; ++core)
      free_.push(-std::numeric_limits<double>::infinity());
  }

  void run() {
    for (std::size_t r = 0; r < next_.size(); ++r) ready_.push_back(r);
    settle();
    while (!released_.empty()) {
      const auto [time, r] = take_first();
      const double begin = std::max(time, free_.top());
      free_.pop();
      perform(r, begin);
      free_.push(clock_.clock_[r]);
      ready_.push_back(r);
      settle();
    }
  }

 private:
  static Rank rank(std::size_t r) { return Rank{static_cast<std::int32_t>(r)}; }

  [[nodiscard]] bool has_run(Node node) const { return clock_.arrival_[node] != kNotYet; }

  [[nodiscard]] const Action& action(std::size_t r, Node node) const {
    return clock_.graph_.program().ranks[r][node - clock_.graph_.first(rank(r))];
  }

  /// Of the passes that could begin first, that of the lowest rank.
  std::pair<double, std::size_t> take_first() {
    auto first = released_.top();
    const double latest = first.first + kRounding * std::abs(first.first);
    for (released_.pop(); !released_.empty() && released_.top().first <= latest; released_.pop()) {
      equal_.push_back(released_.top());
      if (equal_.back().second < first.second) std::swap(first, equal_.back());
    }
    for (const auto& other : equal_) released_.push(other);
    equal_.clear();
    return first;
  }

  /// Lets every rank that may go on come to its next pass.
  void settle() {
    while (!ready_.empty()) {
      const std::size_t r = ready_.back();
      ready_.pop_back();
      advance(r);
    }
  }

  /// Runs what takes no processor, until the next pass is released or something has not run yet.
  void advance(std::size_t r) {
    while (next_[r] < clock_.graph_.first()[r + 1]) {
      const Node node = next_[r];
      if (clock_.pairs_ && has_run(node)) {
        ++next_[r];  // second half of a pair
        continue;
      }
      double begin = clock_.clock_[r];
      const Node wanted = clock_.release(rank(r), node, begin);
      const Op op = action(r, node).op;
      if (wanted != kNoNode && is_receive(op)) {
        post(r, wanted);
      } else if (wanted != kNoNode) {
        wanted_[r] = wanted;
        return waiters_[holder(r, wanted)].push_back(r);
      } else if (takes_core(op)) {
        return released_.emplace(begin, r);
      } else {
        perform(r, begin);
      }
    }
  }

  [[nodiscard]] std::size_t holder(std::size_t r, Node wanted) const {
    return holder_beside(clock_.graph_.first(), r, wanted);
  }

  [[nodiscard]] Interval& interval(std::size_t r, Node node) {
    return clock_.timeline_.ranks[r][node - clock_.graph_.first(rank(r))];
  }

  /// A receive whose message has not left holds nobody up but those who use it.
  void post(std::size_t r, Node wanted) {
    const Node node = next_[r]++;
    interval(r, node).start = clock_.clock_[r];
    posted_[holder(r, wanted)].push_back({r, node});
  }

  /// Runs the next action of a rank; whoever waited for it may go on.
  void perform(std::size_t r, double begin) {
    clock_.perform(rank(r), next_[r]++, begin);
    std::erase_if(posted_[r], [&](const Receive& receive) { return arrives(receive); });
    wake(r);
  }

  void wake(std::size_t on) {
    std::erase_if(waiters_[on], [&](std::size_t waiter) {
      const bool goes_on = has_run(wanted_[waiter]);
      if (goes_on) ready_.push_back(waiter);
      return goes_on;
    });
  }

  struct Receive {
    std::size_t rank;
    Node node;
  };

  /// Whether the message of a posted receive is known by now; then the receive has its end.
  bool arrives(const Receive& receive) {
    const auto [r, node] = receive;
    const double posted = interval(r, node).start;
    double end = posted;
    if (clock_.release(rank(r), node, end) != kNoNode) return false;
    clock_.finish(rank(r), node, action(r, node), {posted, end});
    wake(r);
    return true;
  }

  Clock& clock_;
  std::vector<Node> next_;                             // by rank: the first that has not run
  std::vector<Node> wanted_;                           // by rank: what it waits for
  std::vector<std::vector<std::size_t>> waiters_;      // by rank: the ranks that wait for it
  std::vector<std::vector<Receive>> posted_;           // by rank: receives of its messages
  std::vector<std::size_t> ready_;                     // ranks that may go on
  Earliest<std::pair<double, std::size_t>> released_;  // passes: when they could begin, rank
  std::vector<std::pair<double, std::size_t>> equal_;  // scratch of take_first
  Earliest<double> free_;                              // processors: when they are free
};

bool Clock::run_on_cores() {
  const Waits waits{&graph_, {}, pairs_ ? &cost_.pair : nullptr};
  const std::vector<Node> stand = where_ranks_stand(waits);
  for (std::size_t r = 0; r < stand.size(); ++r) replay_.begin_at(r, stand[r]);
  if (!finished(graph_, stand)) return false;
  make_room();
  SharedCores(*this).run();
  return true;
}

}  // namespace millrace::plan
