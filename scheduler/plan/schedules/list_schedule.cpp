// List scheduling of a job: one queue per class and rank.
#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/optimum.hpp"
#include "plan/model/lookup.hpp"
#include "plan/schedules/list_by_start.hpp"
#include "plan/schedules/list_order.hpp"

namespace millrace {

namespace plan {

namespace {

/// The actions of one class (stage and kind) of a rank, in the order in which they run.
struct Queue {
  std::vector<Node> nodes;
  std::size_t head = 0;
  bool forward = false;

  [[nodiscard]] bool empty() const { return head == nodes.size(); }
  [[nodiscard]] Node front() const { return nodes[head]; }
};

/// The board of a job: a lane is a queue of nodes. What a node waits for is counted, not looked up.
class JobBoard {
 public:
  JobBoard(const Job& job, const ListPolicy& policy)
      : job_(job),
        policy_(policy),
        allowance_(policy.weight_rule == WeightRule::FitsGap ? kNever : 0),
        ranks_(static_cast<std::size_t>(job.ranks())),
        missing_(job.size()),
        ready_(job.size(), 0) {
    for (Node node = 0; node < job.size(); ++node)
      missing_[node] = static_cast<std::uint32_t>(job.producers(node).size());
    for (std::size_t r = 0; r < ranks_.size(); ++r) fill_queues(r);
  }

  [[nodiscard]] int lanes(int rank) const { return static_cast<int>(at(rank).queues.size()); }
  [[nodiscard]] double clock(int rank) const { return at(rank).clock; }

  [[nodiscard]] double start(int rank, int lane) const {
    const Queue& next = queue(rank, lane);
    if (next.empty() || missing_[next.front()] > 0) return kNever;
    return std::max(at(rank).clock, ready_[next.front()]);
  }

  [[nodiscard]] double priority(int rank, int lane) const {
    return policy_.priority[queue(rank, lane).front()];
  }

  [[nodiscard]] bool admits(int rank, int lane) const;

  /// The oldest pending W, where the weight rule has it so.
  [[nodiscard]] int filler(int rank, double due) const {
    const RankState& state = at(rank);
    if (state.next_weight == state.weights.size()) return kNoLane;
    const double ticks = job_.ticks(state.weights[state.next_weight]);
    return takes_wait(state.clock, ticks, due, allowance_) ? kWeights : kNoLane;
  }

  template <class Fed>
  void run(int rank, int lane, Fed&& fed);

  [[nodiscard]] JobOrder order() const {
    JobOrder order;
    order.reserve(job_.size());
    for (const RankState& state : ranks_)
      order.insert(order.end(), state.done.begin(), state.done.end());
    return order;
  }

 private:
  static constexpr int kWeights = -2;  // the lane of pending W that run as fillers

  struct RankState {
    double clock = 0, memory = 0;
    double input_reserve = 0;  // the most that an I adds
    std::vector<Queue> queues;
    std::vector<Node> weights;  // pending W, first come first served
    std::size_t next_weight = 0;
    std::vector<Node> done;
  };

  [[nodiscard]] const RankState& at(int rank) const {
    return ranks_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] const Queue& queue(int rank, int lane) const {
    return at(rank).queues[static_cast<std::size_t>(lane)];
  }
  [[nodiscard]] bool is_filler(const Action& action) const {
    return action.op == Op::BackwardWeight && policy_.weight_rule != WeightRule::ByPriority;
  }

  void fill_queues(std::size_t rank);
  [[nodiscard]] double reserved(const RankState& state, Node forward) const;

  const Job& job_;
  const ListPolicy& policy_;
  double allowance_;
  std::vector<RankState> ranks_;
  std::vector<std::uint32_t> missing_;  // producers not yet scheduled
  std::vector<double> ready_;           // when those that are have arrived
};

void JobBoard::fill_queues(std::size_t rank) {
  std::map<std::tuple<Op, std::uint8_t, Stage>, Queue> by_class;
  RankState& state = ranks_[rank];
  for (Node node = job_.first(rank); node < job_.first(rank + 1); ++node) {
    const Action& action = job_.action(node);
    if (is_filler(action)) continue;
    Queue& queue = by_class[{action.op, action.replica_number, action.stage}];
    queue.forward = action.op == Op::Forward;
    queue.nodes.push_back(node);
    if (!queue.forward) state.input_reserve = std::max(state.input_reserve, job_.room(node));
  }
  for (auto& [key, queue] : by_class) {
    std::ranges::stable_sort(queue.nodes, {}, [&](Node node) { return policy_.priority[node]; });
    state.queues.push_back(std::move(queue));
  }
  state.done.reserve(job_.first(rank + 1) - job_.first(rank));
}

bool JobBoard::admits(int rank, int lane) const {
  if (policy_.memory_limit == std::numeric_limits<double>::infinity()) return true;
  const RankState& state = at(rank);
  const Queue& next = queue(rank, lane);
  const Node node = next.front();
  double wanted = state.memory + job_.room(node);
  if (next.forward)
    wanted = std::max(
        wanted, state.memory + job_.memory(node) + (reserved(state, node) + state.input_reserve));
  return job_.room(node) <= 0 || within_limit(wanted, policy_.memory_limit);
}

/// Memory of the rank's forwards that come before this one by priority and have not run.
double JobBoard::reserved(const RankState& state, Node forward) const {
  double memory = 0;
  for (const Queue& queue : state.queues) {
    if (!queue.forward || queue.empty() || queue.front() == forward) continue;
    const auto from = queue.nodes.begin() + static_cast<std::ptrdiff_t>(queue.head);
    const auto to = std::lower_bound(
        from, queue.nodes.end(), policy_.priority[forward], [&](Node node, double value) {
          return policy_.priority[node] < value;
        });
    memory += static_cast<double>(to - from) * job_.memory(queue.front());
  }
  return memory;
}

template <class Fed>
void JobBoard::run(int rank, int lane, Fed&& fed) {
  RankState& state = ranks_[static_cast<std::size_t>(rank)];
  double start = state.clock;
  Node node = kNoNode;
  if (lane == kWeights) {
    node = state.weights[state.next_weight++];
  } else {
    Queue& queue = state.queues[static_cast<std::size_t>(lane)];
    node = queue.nodes[queue.head++];
    start = std::max(start, ready_[node]);
  }
  const double end = start + job_.ticks(node);
  state.clock = end;
  state.memory += job_.memory(node);
  state.done.push_back(node);
  for (const Node next : job_.consumers(node)) {
    const std::size_t on = job_.rank(next);
    ready_[next] = std::max(ready_[next], end + job_.delay(node, next));
    if (--missing_[next] > 0) continue;
    if (is_filler(job_.action(next)))
      state.weights.push_back(next);
    else
      fed(static_cast<int>(on));
  }
}

}  // namespace

std::optional<JobOrder> list_order(const Job& job, const ListPolicy& policy) {
  JobBoard board(job, policy);
  ListByStart list(board, job.ranks());
  if (!list.run(job.size(), [&](std::size_t actions) { job.spend(actions); })) return std::nullopt;
  return board.order();
}

}  // namespace plan

std::optional<Program> list_schedule(const Program& program,
                                     const Cost& cost,
                                     const std::vector<std::vector<double>>& priority,
                                     const ListOptions& options) {
  const plan::Job job(program, cost);
  require(priority.size() == program.ranks.size(),
          "list_schedule needs priorities for " + std::to_string(program.ranks.size()) +
              " ranks; got " + std::to_string(priority.size()));
  std::vector<double> by_node;
  for (std::size_t r = 0; r < priority.size(); ++r) {
    require(priority[r].size() == program.ranks[r].size(),
            "list_schedule needs a priority for each of the " +
                std::to_string(program.ranks[r].size()) + " actions of rank " + std::to_string(r) +
                "; got " + std::to_string(priority[r].size()));
    for (std::size_t i = 0; i < priority[r].size(); ++i)
      if (program.ranks[r][i].op != Op::Recompute) by_node.push_back(priority[r][i]);
  }
  const auto order = plan::list_order(job, {by_node, options.memory_limit, options.weight_rule});
  if (!order) return std::nullopt;
  return job.program(*order);
}

}  // namespace millrace
