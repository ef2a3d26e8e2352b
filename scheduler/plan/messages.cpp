// Message insertion. All messages are put into one global order, by the time at which a run with
// F = I = W = 1 and free links produces them, and both ends of a message are placed at that point
// of the order on their ranks. Every list is then a part of one sequence in which each send stands
// next to its receive, so the program runs even when a send blocks until its receive is reached
//. The other placement, receive right before use, needs room in the channels.
#include <algorithm>
#include <string>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "plan/clock.hpp"
#include "plan/cycle.hpp"

namespace millrace {

namespace {

/// A compute node whose result crosses ranks.
struct Message {
  Node producer;
  std::uint32_t tick;  // when the producer ends
  Rank source;
  Rank destination;
};

Action end_of_message(const Action& producer, bool send) {
  const bool forward = producer.op == Op::Forward;
  Action action = producer;
  action.with_next = false;
  if (send) {
    action.op = forward ? Op::SendForward : Op::SendBackward;
    return action;
  }
  action.op = forward ? Op::RecvForward : Op::RecvBackward;
  action.stage = Stage{producer.stage.value + (forward ? 1 : -1)};
  return action;
}

/// The rank that waits for what `action` produces, if it is another one.
bool crosses(const Shape& shape, const Action& action, Rank source, Rank& destination) {
  if (action.op != Op::Forward && !gives_input_gradient(action.op)) return false;
  const int stage = action.stage.value + (action.op == Op::Forward ? 1 : -1);
  if (stage < 0 || stage >= shape.stages()) return false;
  destination = shape.rank(action.replica(), Stage{stage});
  return destination != source;
}

/// Adds the receive of what `action` needs from another rank.
void receive_before(const Shape& shape,
                    Rank rank,
                    const Action& action,
                    std::vector<Action>& list) {
  if (action.op != Op::Forward && !gives_input_gradient(action.op)) return;
  const bool forward = action.op == Op::Forward;
  const int from = action.stage.value + (forward ? -1 : 1);
  if (from < 0 || from >= shape.stages()) return;
  if (shape.rank(action.replica(), Stage{from}) == rank) return;
  list.push_back(action);
  list.back().op = forward ? Op::RecvForward : Op::RecvBackward;
  list.back().with_next = false;
}

/// Ends of all actions in a run with F = I = W = 1; a pair takes its halves' sum.
Timeline unit_run(const Graph& graph) {
  Cost cost = Cost::unit(graph.program().shape);
  if (!cost.forward.empty()) cost.pair = 3 * cost.forward.front();
  plan::Clock clock(graph, cost);
  if (clock.run()) return clock.take();
  const plan::Waits waits{&graph, {}, true};
  const Deadlock deadlock = plan::deadlock(graph, plan::shortest_cycle(waits, clock.next()));
  throw InvalidArgument("messages cannot be inserted: the order of the program has a cycle: " +
                        deadlock.sentence());
}

/// Calls `use(message)` for every message, by source and then in the order of its list.
template <class Use>
void for_each_message(const Graph& graph, const Timeline& run, Use&& use) {
  const Program& program = graph.program();
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    const Rank source{static_cast<std::int32_t>(r)};
    Node node = graph.first(source);
    for (std::size_t i = 0; i < program.ranks[r].size(); ++i, ++node) {
      Rank destination;
      if (!crosses(program.shape, program.ranks[r][i], source, destination)) continue;
      const auto tick = static_cast<std::uint32_t>(run.ranks[r][i].end);
      use(Message{node, tick, source, destination});
    }
  }
}

/// All messages, by tick and then by source: a counting sort, stable.
std::vector<Message> sorted_messages(const Graph& graph, const Timeline& run) {
  std::vector<std::uint32_t> place;  // by tick: first message of it, one entry ahead
  for_each_message(graph, run, [&](const Message& message) {
    if (place.size() < message.tick + std::size_t{2}) place.resize(message.tick + std::size_t{2});
    ++place[message.tick + std::size_t{1}];
  });
  for (std::size_t tick = 1; tick < place.size(); ++tick) place[tick] += place[tick - 1];
  std::vector<Message> sorted(place.empty() ? 0 : place.back());
  for_each_message(
      graph, run, [&](const Message& message) { sorted[place[message.tick]++] = message; });
  return sorted;
}

/// Copies each rank's actions up to the point where a message is placed.
class Placer {
 public:
  Placer(const Program& program, const Timeline& run)
      : program_(program), run_(run), next_(program.ranks.size()) {
    result_ = {program.shape, {}, program.name};
    result_.ranks.resize(program.ranks.size());
    for (std::size_t r = 0; r < next_.size(); ++r)
      result_.ranks[r].reserve(program.ranks[r].size() * 3);
  }

  /// Copies what starts before `tick`, then adds `action`.
  void place(Rank rank, double tick, const Action& action) {
    const std::size_t r = rank.index();
    copy_while(r, [&](std::size_t i) { return run_.ranks[r][i].start < tick; });
    result_.ranks[r].push_back(action);
  }

  Program finish() {
    for (std::size_t r = 0; r < next_.size(); ++r) copy_while(r, [](std::size_t) { return true; });
    return std::move(result_);
  }

 private:
  template <class Condition>
  void copy_while(std::size_t r, Condition&& condition) {
    const auto& list = program_.ranks[r];
    for (std::size_t& i = next_[r]; i < list.size() && condition(i); ++i)
      result_.ranks[r].push_back(list[i]);
  }

  const Program& program_;
  const Timeline& run_;
  std::vector<std::size_t> next_;
  Program result_;
};

bool has_messages(const Program& program) {
  for (const auto& list : program.ranks)
    for (const Action& action : list)
      if (is_send(action.op) || is_receive(action.op)) return true;
  return false;
}

}  // namespace

Program insert_messages(const Program& program) {
  if (has_messages(program)) return program;
  const Graph graph(program);
  const Timeline run = unit_run(graph);
  Placer placer(program, run);
  for (const Message& message : sorted_messages(graph, run)) {
    const Action& producer =
        program.ranks[message.source.index()][message.producer - graph.first(message.source)];
    placer.place(message.source, message.tick, end_of_message(producer, true));
    placer.place(message.destination, message.tick, end_of_message(producer, false));
  }
  return placer.finish();
}

Program insert_messages_before_use(const Program& program) {
  if (has_messages(program)) return program;
  const Shape& shape = program.shape;
  Program result{shape, {}, program.name};
  result.ranks.resize(program.ranks.size());
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    const Rank rank{static_cast<std::int32_t>(r)};
    const auto& list = program.ranks[r];
    auto& out = result.ranks[r];
    for (std::size_t i = 0; i < list.size();) {
      std::size_t end = i + 1;  // of the action with its pair
      while (end < list.size() && list[end - 1].with_next) ++end;
      for (std::size_t j = i; j < end; ++j) receive_before(shape, rank, list[j], out);
      out.insert(out.end(),
                 list.begin() + static_cast<std::ptrdiff_t>(i),
                 list.begin() + static_cast<std::ptrdiff_t>(end));
      for (; i < end; ++i) {
        Rank destination;
        if (crosses(shape, list[i], rank, destination))
          out.push_back(end_of_message(list[i], true));
      }
    }
  }
  return result;
}

}  // namespace millrace
