// One visit per action: when is its rank free, when have its producers' results arrived, how long
// does it take, when does its own result arrive.
#include "plan/simulate/clock.hpp"

#include <algorithm>

namespace millrace::plan {

Clock::Clock(const Graph& graph, const Cost& cost, const ClockOptions& options)
    : graph_(graph),
      cost_(cost),
      options_(options),
      pairs_(cost.pair.any() && graph.has_pairs()),
      plain_links_(cost.link_latency.empty() && cost.bytes_per_tick == 0 &&
                   cost.link_bytes_per_tick.empty()),
      replay_(graph.first()),
      places_(graph),
      sums_(graph, cost) {
  const auto ranks = static_cast<std::size_t>(graph.program().shape.ranks);
  clock_.assign(ranks, 0);
  if (!options.start.empty()) clock_.assign(options.start.begin(), options.start.end());
  if (cost.contention && !plain_links_) link_free_.assign(ranks * ranks, 0);
  const Shape& shape = graph.program().shape;
  pieces_ = static_cast<std::size_t>(shape.stages()) * static_cast<std::size_t>(shape.slices);
  for (int op = 0; op < kOps; ++op)
    for (int stage = 0; stage < shape.stages(); ++stage)
      for (int slice = 0; slice < shape.slices; ++slice)
        ticks_.push_back(cost.ticks({.op = static_cast<Op>(op),
                                     .stage = Stage{stage},
                                     .micro_batch = {},
                                     .slice = Slice{slice}}));
  timeline_.ticks_per_unit = cost.ticks_per_unit;
  for (int op = 0; op < kOps; ++op)
    if (sends_message(static_cast<Op>(op))) flight_[static_cast<std::size_t>(op)] = cost.latency;
  timeline_.ranks.resize(ranks);
  if (sums_.none()) return;
  sum_links_.resize(ranks);
  sum_end_.assign(sums_.all().size(), kNotYet);
}

inline Node Clock::step(Rank rank, Node node) {
  if (pairs_ && arrival_[node] != kNotYet) return kNoNode;  // second half of a pair
  double begin = clock_[rank.index()];
  const Node wanted = release(rank, node, begin);
  if (wanted == kNoNode) perform(rank, node, begin);
  return wanted;
}

/// Of the atomic pair that begins with the node; below 0 without one.
inline double Clock::pair_ticks(Rank rank, Node node) const {
  if (!pairs_) return -1;
  return cost_.pair.at(graph_.program().on(rank), node - graph_.first(rank));
}

/// What the node, or one half of an atomic pair, waits for, or kNoNode with `begin` moved to when
/// everything has arrived.
Node Clock::release(Rank rank, Node node, double& begin) const {
  const Action* const action =
      graph_.program().ranks[rank.index()].data() + (node - graph_.first(rank));
  const Node wanted = wait_for(rank, node, action[0], begin);
  if (action[0].op == Op::ReduceGrad && !sums_.none())
    begin = std::max(begin, end_of_sums(rank, action[0]));
  if (wanted != kNoNode || pair_ticks(rank, node) < 0) return wanted;
  return wait_for(rank, node + 1, action[1], begin);
}

/// Runs the node, or both halves of an atomic pair, from `begin` on.
void Clock::perform(Rank rank, Node node, double begin) {
  const Action* const action =
      graph_.program().ranks[rank.index()].data() + (node - graph_.first(rank));
  double& clock = clock_[rank.index()];
  const bool pair = pair_ticks(rank, node) >= 0;
  const bool receives = is_receive(action->op) && !pair;
  const bool waits = receives || (action->op == Op::ReduceGrad && !sums_.none());
  const double end = begin + duration(rank, node, *action);
  finish(rank, node, *action, {waits ? clock : begin, end});
  if (pair) finish(rank, node + 1, action[1], {begin, end});
  if (!receives || options_.stands_in_receives) clock = end;
}

/// The first producer that has not run, or kNoNode with `begin` moved to when all have arrived.
inline Node Clock::wait_for(Rank rank, Node node, const Action& action, double& begin) const {
  return plan::wait_for(graph_.producers(node), begin, [&](Node producer) {
    return arrival_[producer] == kNotYet ? kNotYet : usable(rank, producer, action);
  });
}

inline double Clock::usable(Rank rank, Node producer, const Action& consumer) const {
  if (has_unit(consumer.op) && sent_.empty()) return arrival_[producer];
  const Rank source = graph_.rank(producer);
  if (has_unit(consumer.op))
    return source == rank ? arrival_[producer]
                          : sent_[places_.at(producer, graph_.action(producer), consumer.stage)];
  const double end = timeline_.ranks[source.index()][producer - graph_.first(source)].end;
  return end + cost_.delay(source, rank, graph_.program().shape.ranks);
}

inline double Clock::duration(Rank rank, Node node, const Action& action) const {
  if (!options_.ticks.empty()) return options_.ticks[node];
  double ticks = pair_ticks(rank, node);
  if (ticks < 0) ticks = ticks_[ticks_index(action)];
  if (!cost_.rank_speed.empty()) ticks /= cost_.rank_speed[rank.index()];
  if (!options_.factor.empty()) ticks *= options_.factor[node];
  return ticks;
}

void Clock::finish(Rank rank, Node node, const Action& action, Interval interval) {
  timeline_.ranks[rank.index()][node - graph_.first(rank)] = interval;
  arrival_[node] = interval.end;
  if (!sums_.none()) start_sum(node, action, interval.end);
  if (!sends_message(action.op)) return;
  if (plain_links_)
    arrival_[node] += cost_.latency;
  else
    send_all(rank, node, action, interval.end);
}

/// The messages of an action that ended at `end` leave in the order of their receiving stages.
void Clock::send_all(Rank rank, Node node, const Action& action, double end) {
  const Shape& shape = graph_.program().shape;
  for_each_message(graph_, action, [&](const StageLink& link, Stage receiver) {
    const double arrival = arrive(rank, shape.rank(action.replica(), receiver), link.from, end);
    if (sent_.empty())
      arrival_[node] = arrival;
    else
      sent_[places_.at(node, action, receiver)] = arrival;
  });
}

/// When a message that is ready at `end` is at its destination.
double Clock::arrive(Rank rank, Rank to, Stage feeding, double end) {
  if (to == rank) return end;
  const int ranks = graph_.program().shape.ranks;
  double leave = end;
  const double transfer = cost_.transfer(rank, to, ranks, feeding);
  if (!link_free_.empty()) {
    double& link = link_free_[rank.index() * static_cast<std::size_t>(ranks) + to.index()];
    leave = std::max(leave, link);
    link = leave + transfer;
  }
  return leave + transfer + cost_.delay(rank, to, ranks);
}

/// If the action is the last B or W of its stage.
void Clock::start_sum(Node node, const Action& action, double end) {
  if (!gives_weight_gradient(action.op)) return;
  const std::size_t place = sums_.place(action.replica(), action.stage);
  if (place == PlannedSums::kNone || sums_.all()[place].last != node) return;
  const PlannedSum& sum = sums_.all()[place];
  sum_end_[place] = sum_links_[sum.rank.index()].take(end, sum.transfer, sum.delay).end;
}

/// When everything that a REDUCE_GRAD adds over the data-parallel replicas is on its rank.
double Clock::end_of_sums(Rank rank, const Action& action) const {
  double end = 0;
  for (const AwaitedSum& awaited : sums_.awaited_by(action))
    end = std::max(end, sums_.arrival(awaited, rank, sum_end_[awaited.sum], 1, [this](Node before) {
      const Rank from = graph_.rank(before);
      return timeline_.ranks[from.index()][before - graph_.first(from)].end;
    }));
  return end;
}

inline bool Clock::sends_message(Op op) const {
  if (graph_.has_messages()) return is_send(op);
  return op == Op::Forward || gives_input_gradient(op);
}

void Clock::make_room() {
  arrival_.assign(graph_.size(), kNotYet);
  if (!plain_links_ && !graph_.gives_once()) sent_.assign(places_.size(), kNotYet);
  for (std::size_t r = 0; r < timeline_.ranks.size(); ++r)
    timeline_.ranks[r].resize(graph_.program().ranks[r].size());
}

bool Clock::run() {
  if (cost_.shares_cores(graph_.program().shape.ranks)) return run_on_cores();
  if (is_plain()) return run_plain();
  make_room();
  return replay_.run([this](Rank rank, Node node) { return step(rank, node); });
}

}  // namespace millrace::plan
