// Message insertion. All messages have one global order: by the time at which a run with F = I = W
// = 1 and free links produces them, then by source. Both ends of a message are placed at that point
// of the order on their ranks, rank by rank. Every list is then a part of one sequence in which
// each send stands next to its receive, so the program runs even when a send blocks until its
// receive is reached. The other placement, receive right before use, needs room in the channels.
#include <optional>
#include <span>
#include <vector>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/stage_graph.hpp"
#include "plan/model/validate.hpp"
#include "plan/simulate/clock.hpp"
#include "plan/verify/cycle.hpp"

namespace millrace {

namespace {

/// Calls `use(link, destination)` for each message that what `action` makes travels in.
template <class Use>
void for_each_crossing(
    const Shape& shape, const StageGraph& graph, const Action& action, Rank source, Use&& use) {
  for_each_link_out(graph, action, [&](const StageLink& link) {
    const Stage to = action.op == Op::Forward ? link.to : link.from;
    const Rank destination = shape.rank(action.replica(), to);
    if (destination != source) use(link, destination);
  });
}

/// Adds the receives of what `action` needs from other ranks.
void receive_before(const Shape& shape,
                    const StageGraph& graph,
                    Rank rank,
                    const Action& action,
                    std::vector<Action>& list) {
  for_each_link_in(graph, action, [&](const StageLink& link) {
    Action producer = action;
    producer.stage = action.op == Op::Forward ? link.from : link.to;
    if (shape.rank(action.replica(), producer.stage) != rank)
      list.push_back(receive_of(producer, link));
  });
}

/// Calls `use(group)` for each action of a list with its pair.
template <class Use>
void for_each_group(const std::vector<Action>& list, Use&& use) {
  for (std::size_t i = 0; i < list.size();) {
    std::size_t end = i + 1;
    while (end < list.size() && list[end - 1].with_next) ++end;
    use(std::span<const Action>(list.data() + i, end - i));
    i = end;
  }
}

/// Ends of all actions in a run with F = I = W = 1; a pair takes its halves' sum.
Timeline unit_run(const Graph& graph) {
  Cost cost = Cost::unit(graph.program().shape);
  if (!cost.forward.empty()) cost.pair.ticks.fill(3 * cost.forward.front());
  plan::Clock clock(graph, cost);
  if (clock.run()) return clock.take();
  const plan::Waits waits{&graph, {}, &cost.pair};
  const Deadlock deadlock = plan::deadlock(graph, plan::shortest_cycle(waits, clock.next()));
  throw InvalidArgument("messages cannot be inserted: the order of the program has a cycle: " +
                        deadlock.message());
}

/// A message of a rank: what makes it, where it goes, and along which link of its stage.
struct Sent {
  std::uint32_t position = 0;
  Rank destination;
  StageLink link;
};

/// Who sends what to whom, found once: the merges below read each list several times.
struct Traffic {
  explicit Traffic(const Program& program)
      : graph(program.shape),
        sent(program.ranks.size()),
        messages(program.ranks.size()),
        sources(program.ranks.size()) {
    for (std::size_t r = 0; r < program.ranks.size(); ++r) {
      const Rank source{static_cast<std::int32_t>(r)};
      std::uint32_t position = 0;
      for (const Action& action : program.ranks[r]) {
        for_each_crossing(
            program.shape, graph, action, source, [&](const StageLink& link, Rank destination) {
              sent[r].push_back({position, destination, link});
              note(source, destination);
            });
        ++position;
      }
    }
  }

  StageGraph graph;
  std::vector<std::vector<Sent>> sent;     // by rank, in the order of its list
  std::vector<std::size_t> messages;       // by rank: sent and received
  std::vector<std::vector<Rank>> sources;  // by destination, ascending

 private:
  void note(Rank source, Rank destination) {
    ++messages[source.index()];
    ++messages[destination.index()];
    auto& known = sources[destination.index()];
    if (known.empty() || known.back() != source) known.push_back(source);
  }
};

/// The messages of one rank to another, or to all others, in the order of its list: by tick.
class Stream {
 public:
  Stream(const Program& program,
         const Timeline& run,
         const Traffic& traffic,
         Rank source,
         std::optional<Rank> to)
      : list_(program.ranks[source.index()].data()),
        run_(run.ranks[source.index()].data()),
        at_(traffic.sent[source.index()].data()),
        end_(at_ + traffic.sent[source.index()].size()),
        to_(to) {
    find();
  }

  [[nodiscard]] bool done() const { return at_ == end_; }
  /// When the producer of the next message ends. Requires !done().
  [[nodiscard]] double tick() const { return run_[at_->position].end; }
  /// This rank's end of the message, if these are all that the rank sends, else the receiver's.
  [[nodiscard]] Action action() const {
    const Action& producer = list_[at_->position];
    return to_ ? receive_of(producer, at_->link) : send_of(producer, at_->link);
  }

  void next() {
    ++at_;
    find();
  }

 private:
  void find() {
    while (to_ && at_ < end_ && at_->destination != *to_) ++at_;
  }

  const Action* list_;
  const Interval* run_;
  const Sent* at_;
  const Sent* end_;
  std::optional<Rank> to_;
};

/// The messages of one rank, sent and received, by tick and then by source.
class Merge {
 public:
  Merge(const Program& program, const Timeline& run, const Traffic& traffic, Rank rank) {
    bool own = false;
    const auto add_own = [&] {
      if (!own) streams_.emplace_back(program, run, traffic, rank, std::nullopt);
      own = true;
    };
    for (const Rank source : traffic.sources[rank.index()]) {
      if (rank < source) add_own();
      streams_.emplace_back(program, run, traffic, source, rank);
    }
    add_own();
    std::erase_if(streams_, [](const Stream& stream) { return stream.done(); });
  }

  /// Calls `use(stream)` for each message, with the stream that is at it.
  template <class Use>
  void for_each(Use&& use) {
    while (!streams_.empty()) {
      std::size_t first = 0;
      for (std::size_t i = 1; i < streams_.size(); ++i)
        if (streams_[i].tick() < streams_[first].tick()) first = i;
      use(streams_[first]);
      streams_[first].next();
      if (streams_[first].done()) streams_.erase(streams_.begin() + std::ptrdiff_t(first));
    }
  }

 private:
  std::vector<Stream> streams_;  // by source
};

/// One rank's list with its messages: each stands behind what starts before its tick.
std::vector<Action> place_messages(const Program& program,
                                   const Timeline& run,
                                   const Traffic& traffic,
                                   Rank rank) {
  const auto& list = program.ranks[rank.index()];
  const auto& intervals = run.ranks[rank.index()];
  std::vector<Action> result;
  result.reserve(list.size() + traffic.messages[rank.index()]);
  std::size_t next = 0;
  Merge(program, run, traffic, rank).for_each([&](const Stream& message) {
    while (next < list.size() && intervals[next].start < message.tick())
      result.push_back(list[next++]);
    result.push_back(message.action());
  });
  result.insert(result.end(), list.begin() + std::ptrdiff_t(next), list.end());
  return result;
}

}  // namespace

bool has_messages(const Program& program) {
  for (const auto& list : program.ranks)
    for (const Action& action : list)
      if (is_send(action.op) || is_receive(action.op)) return true;
  return false;
}

Program insert_messages(Program program) {
  if (has_messages(program)) return program;
  const Graph graph(program);
  const Timeline run = unit_run(graph);
  const Traffic traffic(program);
  Program result{program.shape, {}, program.name};
  for (std::size_t r = 0; r < program.ranks.size(); ++r)
    result.ranks.push_back(
        place_messages(program, run, traffic, Rank{static_cast<std::int32_t>(r)}));
  return result;
}

Program insert_messages_before_use(Program program) {
  plan::validate(program);
  if (has_messages(program)) return program;
  const Shape& shape = program.shape;
  const StageGraph graph(shape);
  Program result{shape, {}, program.name};
  result.ranks.resize(program.ranks.size());
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    const Rank rank{static_cast<std::int32_t>(r)};
    auto& out = result.ranks[r];
    for_each_group(program.ranks[r], [&](std::span<const Action> group) {
      for (const Action& action : group) receive_before(shape, graph, rank, action, out);
      out.insert(out.end(), group.begin(), group.end());
      for (const Action& action : group)
        for_each_crossing(shape, graph, action, rank, [&](const StageLink& link, Rank) {
          out.push_back(send_of(action, link));
        });
    });
  }
  return result;
}

Program receive_before_use(Program program) {
  plan::validate(program);
  if (!has_messages(program)) return program;
  const StageGraph graph(program.shape);
  Program result{program.shape, {}, program.name};
  result.ranks.resize(program.ranks.size());
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    const Rank rank{static_cast<std::int32_t>(r)};
    auto& out = result.ranks[r];
    for_each_group(program.ranks[r], [&](std::span<const Action> group) {
      if (is_receive(group.front().op)) return;
      for (const Action& action : group) receive_before(program.shape, graph, rank, action, out);
      out.insert(out.end(), group.begin(), group.end());
    });
  }
  return result;
}

}  // namespace millrace
