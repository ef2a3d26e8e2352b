// List scheduling: one queue per class and rank, one cached candidate per rank.
#include "millrace/scheduler/plan/list_schedule.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <string>
#include <tuple>

#include "millrace/core/error.hpp"
#include "plan/model/lookup.hpp"
#include "plan/schedules/list_order.hpp"

namespace millrace {

namespace plan {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// The actions of one class (stage and kind) of a rank, in the order in which they run.
struct Queue {
  std::vector<Node> nodes;
  std::size_t head = 0;
  bool forward = false;
  bool weight = false;

  [[nodiscard]] bool empty() const { return head == nodes.size(); }
  [[nodiscard]] Node front() const { return nodes[head]; }
};

/// The rank whose candidate starts first, of equals the lowest: a tournament, so that with many
/// ranks a change costs O(log ranks).
class Earliest {
 public:
  explicit Earliest(std::size_t ranks)
      : leaves_(std::bit_ceil(ranks)), start_(leaves_, kNever), winner_(2 * leaves_) {
    for (std::size_t r = 0; r < leaves_; ++r) winner_[leaves_ + r] = static_cast<std::uint32_t>(r);
    for (std::size_t match = leaves_; match-- > 1;) winner_[match] = winner_[2 * match];
  }

  void set(std::size_t rank, double start) {
    start_[rank] = start;
    for (std::size_t match = (leaves_ + rank) / 2; match > 0; match /= 2) {
      const std::uint32_t lower = winner_[2 * match], upper = winner_[2 * match + 1];
      winner_[match] = start_[upper] < start_[lower] ? upper : lower;
    }
  }

  [[nodiscard]] std::size_t rank() const { return winner_[1]; }
  [[nodiscard]] bool is_none() const { return start_[rank()] == kNever; }

 private:
  std::size_t leaves_;
  std::vector<double> start_;
  std::vector<std::uint32_t> winner_;  // by match; the final is 1, of m they are 2m and 2m + 1
};

struct Candidate {
  Node node = kNoNode;
  double start = 0;
  Queue* queue = nullptr;
};

class Lister {
 public:
  Lister(const Job& job, const ListPolicy& policy)
      : job_(job),
        policy_(policy),
        ranks_(static_cast<std::size_t>(job.ranks())),
        earliest_(ranks_.size()),
        missing_(job.size()),
        ready_(job.size(), 0) {
    for (Node node = 0; node < job.size(); ++node)
      missing_[node] = static_cast<std::uint32_t>(job.producers(node).size());
    for (std::size_t r = 0; r < ranks_.size(); ++r) fill_queues(r);
  }

  std::optional<JobOrder> run();

 private:
  struct RankState {
    double clock = 0, memory = 0;
    double input_reserve = 0;  // the most that an I adds
    std::vector<Queue> queues;
    std::vector<Node> weights;  // pending W, first come first served
    std::size_t next_weight = 0;
    std::vector<Node> done;
    Candidate candidate;
  };

  void fill_queues(std::size_t rank);
  void choose(std::size_t rank);
  void consider_weight(RankState& state) const;
  [[nodiscard]] Candidate best_of_queues(RankState& state) const;
  [[nodiscard]] bool admits(const RankState& state, const Queue& queue) const;
  [[nodiscard]] double reserved(const RankState& state, Node forward) const;
  void execute(std::size_t rank);

  const Job& job_;
  const ListPolicy& policy_;
  std::vector<RankState> ranks_;
  Earliest earliest_;
  std::vector<std::uint32_t> missing_;  // producers not yet scheduled
  std::vector<double> ready_;           // when those that are have arrived
};

void Lister::fill_queues(std::size_t rank) {
  std::map<std::tuple<Op, std::uint8_t, Stage>, Queue> by_class;
  RankState& state = ranks_[rank];
  for (Node node = job_.first(rank); node < job_.first(rank + 1); ++node) {
    const Action& action = job_.action(node);
    const bool weight = action.op == Op::BackwardWeight;
    if (weight && policy_.weight_rule != WeightRule::ByPriority) continue;
    Queue& queue = by_class[{action.op, action.replica_number, action.stage}];
    queue.forward = action.op == Op::Forward;
    queue.weight = weight;
    queue.nodes.push_back(node);
    if (!queue.forward) state.input_reserve = std::max(state.input_reserve, job_.memory(node));
  }
  for (auto& [key, queue] : by_class) {
    std::ranges::stable_sort(queue.nodes, {}, [&](Node node) { return policy_.priority[node]; });
    state.queues.push_back(std::move(queue));
  }
  state.done.reserve(job_.first(rank + 1) - job_.first(rank));
}

std::optional<JobOrder> Lister::run() {
  for (std::size_t r = 0; r < ranks_.size(); ++r) choose(r);
  for (std::size_t left = job_.size(); left > 0; --left) {
    job_.spend(1 + ranks_.size() / 8);
    if (earliest_.is_none()) return std::nullopt;
    execute(earliest_.rank());
  }
  JobOrder order;
  order.reserve(job_.size());
  for (const RankState& state : ranks_)
    order.insert(order.end(), state.done.begin(), state.done.end());
  return order;
}

/// Names the action that the rank runs next, as far as is known now.
void Lister::choose(std::size_t rank) {
  RankState& state = ranks_[rank];
  state.candidate = best_of_queues(state);
  consider_weight(state);
  earliest_.set(rank, state.candidate.node == kNoNode ? kNever : state.candidate.start);
}

/// Lets the rank's pending W come first where the weight rule has it so.
void Lister::consider_weight(RankState& state) const {
  if (state.next_weight == state.weights.size()) return;
  const Node weight = state.weights[state.next_weight];
  const bool none = state.candidate.node == kNoNode;
  if (!none && state.candidate.start <= state.clock) return;
  const bool fits = none || state.clock + job_.ticks(weight) <= state.candidate.start;
  if (!fits && policy_.weight_rule == WeightRule::FitsGap) return;
  state.candidate = {weight, state.clock, nullptr};
}

Candidate Lister::best_of_queues(RankState& state) const {
  Candidate best;
  for (Queue& queue : state.queues) {
    if (queue.empty() || missing_[queue.front()] > 0) continue;
    const Node node = queue.front();
    const double start = std::max(state.clock, ready_[node]);
    if (best.node != kNoNode && std::pair(start, policy_.priority[node]) >=
                                    std::pair(best.start, policy_.priority[best.node]))
      continue;
    if (admits(state, queue)) best = {node, start, &queue};
  }
  return best;
}

bool Lister::admits(const RankState& state, const Queue& queue) const {
  if (policy_.memory_limit == std::numeric_limits<double>::infinity()) return true;
  const Node node = queue.front();
  double wanted = state.memory + job_.memory(node);
  if (!policy_.room.empty())
    wanted += policy_.room[node];
  else if (queue.forward)
    wanted += reserved(state, node) + state.input_reserve;
  return job_.memory(node) <= 0 || within_limit(wanted, policy_.memory_limit);
}

/// Memory of the rank's forwards that come before this one by priority and have not run.
double Lister::reserved(const RankState& state, Node forward) const {
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

void Lister::execute(std::size_t rank) {
  RankState& state = ranks_[rank];
  const auto [node, start, queue] = state.candidate;
  if (queue != nullptr) {
    ++queue->head;
  } else {
    ++state.next_weight;
  }
  const double end = start + job_.ticks(node);
  state.clock = end;
  state.memory += job_.memory(node);
  state.done.push_back(node);
  for (const Node next : job_.consumers(node)) {
    const std::size_t on = job_.rank(next);
    ready_[next] = std::max(ready_[next], end + job_.delay(node, on));
    if (--missing_[next] > 0) continue;
    if (job_.action(next).op == Op::BackwardWeight && policy_.weight_rule != WeightRule::ByPriority)
      state.weights.push_back(next);
    else if (on != rank)
      choose(on);
  }
  choose(rank);
}

}  // namespace

std::optional<JobOrder> list_order(const Job& job, const ListPolicy& policy) {
  return Lister(job, policy).run();
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
    by_node.insert(by_node.end(), priority[r].begin(), priority[r].end());
  }
  const auto order =
      plan::list_order(job, {by_node, {}, options.memory_limit, options.weight_rule});
  if (!order) return std::nullopt;
  return job.program(*order);
}

}  // namespace millrace
