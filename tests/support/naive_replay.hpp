// The oracle of the simulator: replays a program step by step with nothing but sets and maps, one
// try per rank and turn. It shares no code with the graph and knows the dependencies by itself.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/scheduler/plan/program.hpp"
#include "millrace/scheduler/plan/simulate.hpp"

namespace millrace::testing_plan {

/// Slow, obvious replay of programs without reductions except those over data-parallel replicas,
/// in which replicas of a stage live on ranks of their own; pairs run one half after the other
/// unless the cost gives them a time of their own.
class NaiveReplay {
 public:
  NaiveReplay(const Program& program, const Cost& cost) : program_(program), cost_(cost) {
    for (const auto& list : program.ranks)
      for (const Action& action : list) {
        if (has_unit(action.op)) exists_[key(action)] = true;
        if (makes_weights(action)) ++weights_left_[copy(action)];
      }
  }

  /// Intervals of all actions, or nothing when no rank can move.
  std::optional<std::vector<std::vector<Interval>>> run() {
    std::vector<std::vector<Interval>> result(program_.ranks.size());
    std::vector<double> free(result.size(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t r = 0; r < result.size(); ++r) {
        auto& done = result[r];
        if (done.size() == program_.ranks[r].size()) continue;
        const Action& action = program_.ranks[r][done.size()];
        if (time_of_pair(r, done.size()) >= 0) {
          const auto both = attempt_pair(
              static_cast<int>(r), action, program_.ranks[r][done.size() + 1], free[r]);
          if (!both) continue;
          free[r] = both->end;
          done.insert(done.end(), 2, *both);
          moved = true;
          continue;
        }
        const auto interval = attempt(static_cast<int>(r), action, free[r]);
        if (!interval) continue;
        if (!is_receive(action.op)) free[r] = interval->end;  // a receive is only posted
        if (makes_weights(action) && --weights_left_[copy(action)] == 0)
          add_over_copies(copy(action), r, interval->end);
        done.push_back(*interval);
        moved = true;
      }
    }
    for (std::size_t r = 0; r < result.size(); ++r)
      if (result[r].size() != program_.ranks[r].size()) return std::nullopt;
    return result;
  }

 private:
  using Key = std::tuple<int, int, int, int, int>;  // product, stage, micro-batch, slice, link

  struct Done {
    double end = 0;
    int rank = 0;
  };

  enum Product { F, G, W, R, SendF, RecvF, SendG, RecvG };

  static int product(Op op) {
    static const std::map<Op, int> products = {{Op::Forward, F},
                                               {Op::Backward, G},
                                               {Op::BackwardInput, G},
                                               {Op::BackwardWeight, W},
                                               {Op::Recompute, R},
                                               {Op::SendForward, SendF},
                                               {Op::RecvForward, RecvF},
                                               {Op::SendBackward, SendG},
                                               {Op::RecvBackward, RecvG}};
    return products.at(op);
  }

  static Key key(const Action& a) {
    return {product(a.op), a.stage.value, a.micro_batch.value, a.slice.value, a.edge};
  }

  /// What must have happened: (product, stage, slice) in the same micro-batch.
  std::vector<Key> wanted(const Action& a) const {
    const int s = a.stage.value, i = a.micro_batch.value, k = a.slice.value;
    std::vector<Key> keys;
    switch (a.op) {
      case Op::Forward:
        for (const Neighbour& from : neighbours(s, false)) {
          const Key received{RecvF, s, i, k, from.own_number};
          keys.push_back(exists(received) ? received : Key{F, from.stage, i, k, 0});
        }
        if (k > 0) keys.push_back({F, s, i, k - 1, 0});
        break;
      case Op::Backward:
      case Op::BackwardInput:
        keys.push_back({F, s, i, k, 0});
        if (exists({R, s, i, k, 0})) keys.push_back({R, s, i, k, 0});
        for (const Neighbour& to : neighbours(s, true)) {
          const Key received{RecvG, s, i, k, to.own_number};
          keys.push_back(exists(received) ? received : Key{G, to.stage, i, k, 0});
        }
        if (k + 1 < program_.shape.slices) keys.push_back({G, s, i, k + 1, 0});
        break;
      case Op::BackwardWeight:
      case Op::SendBackward:
        keys.push_back({G, s, i, k, 0});
        break;
      case Op::Recompute:
      case Op::SendForward:
        keys.push_back({F, s, i, k, 0});
        break;
      case Op::RecvForward:
        for (const Neighbour& from : neighbours(s, false))
          if (from.own_number == a.edge)
            keys.push_back({SendF, from.stage, i, k, from.other_number});
        break;
      case Op::RecvBackward:
        for (const Neighbour& to : neighbours(s, true))
          if (to.own_number == a.edge) keys.push_back({SendG, to.stage, i, k, to.other_number});
        break;
      case Op::ReduceGrad:
      case Op::OptimizerStep:
        break;
    }
    return keys;
  }

  bool exists(const Key& key) const { return exists_.count(key) > 0; }

  /// The stages that give to stage `s` (or, `back`, that it gives to), with the number of the link
  /// at `s` and at the other one. 0 is the neighbour; the others count from 1, ascending.
  struct Neighbour {
    int stage, own_number, other_number;
  };

  std::vector<int> linked(int s, bool back) const {
    std::set<int> found;
    if (program_.shape.edges.empty()) {
      const int other = back ? s + 1 : s - 1;
      if (other >= 0 && other < program_.shape.stages()) found.insert(other);
    }
    for (const StageEdge& edge : program_.shape.edges)
      if ((back ? edge.from : edge.to).value == s) found.insert((back ? edge.to : edge.from).value);
    return {found.begin(), found.end()};
  }

  int number(int s, int other, bool back) const {
    if (other == (back ? s + 1 : s - 1)) return 0;
    int number = 1;
    for (const int each : linked(s, back))
      if (each < other && each != (back ? s + 1 : s - 1)) ++number;
    return number;
  }

  std::vector<Neighbour> neighbours(int s, bool back) const {
    std::vector<Neighbour> found;
    for (const int other : linked(s, back))
      found.push_back({other, number(s, other, back), number(other, s, !back)});
    return found;
  }

  /// When all that the action needs is there, if it ever was.
  std::optional<double> ready(int rank, const Action& action, double free) const {
    double ready = free;
    for (const Key& need : wanted(action)) {
      const auto done = done_.find(need);
      if (done == done_.end()) return std::nullopt;
      const bool message = done->second.rank != rank;
      ready = std::max(ready, done->second.end + (message ? cost_.latency : 0));
    }
    return ready;
  }

  std::optional<Interval> attempt_pair(int rank,
                                       const Action& one,
                                       const Action& two,
                                       double free) {
    const auto first = ready(rank, one, free), second = ready(rank, two, free);
    if (!first || !second) return std::nullopt;
    const double start = std::max(*first, *second);
    const double end = start + cost_.pair.of(one.op, two.op);
    done_[key(one)] = done_[key(two)] = {end, rank};
    for (const Action* half : {&one, &two})
      if (makes_weights(*half) && --weights_left_[copy(*half)] == 0)
        add_over_copies(copy(*half), static_cast<std::size_t>(rank), end);
    return Interval{start, end};
  }

  /// Of the pair that begins there; below 0 where its halves follow one another.
  double time_of_pair(std::size_t rank, std::size_t at) const {
    const auto& list = program_.ranks[rank];
    const bool pair = list[at].with_next && at + 1 < list.size();
    return pair ? cost_.pair.of(list[at].op, list[at + 1].op) : -1;
  }

  static bool makes_weights(const Action& action) {
    return action.op == Op::Backward || action.op == Op::BackwardWeight;
  }

  using StageCopy = std::pair<int, int>;  // stage, replica

  static StageCopy copy(const Action& action) {
    return {action.stage.value, action.replica_number};
  }

  double gradient_bytes(int stage) const {
    const bool travel = !cost_.gradient_bytes.empty() && cost_.bytes_per_tick > 0;
    return travel ? cost_.gradient_bytes[static_cast<std::size_t>(stage)] : 0;
  }

  /// One sum after the other through the link of the rank: each copy owns a d-th of the gradients,
  /// gets that from d - 1 others and gives them its sum, at the same time as they do.
  void add_over_copies(const StageCopy& of, std::size_t rank, double from) {
    const double d = cost_.data_parallel;
    if (d == 1) return;
    const double bytes = gradient_bytes(of.first) / d * (d - 1);
    const double begin = std::max(from, link_free_[rank]);
    link_free_[rank] = begin + (bytes + bytes) / std::max(1e-300, cost_.bytes_per_tick);
    sum_there_[of] = link_free_[rank] + cost_.latency + cost_.latency;
  }

  /// A rank that comes here has its sum in the end, gives it to the other replicas at once and then
  /// stands until it has theirs.
  std::optional<Interval> reduce(const Action& action, double free) {
    const auto there = sum_there_.find(copy(action));
    if (there == sum_there_.end()) return std::nullopt;
    double end = given_[copy(action)] = std::max(free, there->second);
    for (int other = 0; other < program_.shape.replicas(); ++other) {
      if (other == action.replica_number) continue;
      const auto given = given_.find({action.stage.value, other});
      if (given == given_.end()) return std::nullopt;
      const double travel =
          gradient_bytes(action.stage.value) / std::max(1e-300, cost_.bytes_per_tick);
      end = std::max(end, given->second + travel + cost_.latency);
    }
    return Interval{free, end};
  }

  std::optional<Interval> attempt(int rank, const Action& action, double free) {
    if (action.op == Op::ReduceGrad) return reduce(action, free);
    const auto begin = ready(rank, action, free);
    if (!begin) return std::nullopt;
    const double speed =
        cost_.rank_speed.empty() ? 1 : cost_.rank_speed[static_cast<std::size_t>(rank)];
    const Interval interval{is_receive(action.op) ? free : *begin,
                            *begin + cost_.ticks(action) / speed};
    if (has_unit(action.op)) done_[key(action)] = {interval.end, rank};
    return interval;
  }

  const Program& program_;
  const Cost& cost_;
  std::map<Key, bool> exists_;
  std::map<Key, Done> done_;
  std::map<StageCopy, int> weights_left_;
  std::map<StageCopy, double> sum_there_;    // when its sum over the copies is
  std::map<StageCopy, double> given_;        // when it leaves for the other replicas
  std::map<std::size_t, double> link_free_;  // by rank
};

}  // namespace millrace::testing_plan
