// Collects channels in one pass and turns their depths into edges.
#include "plan/verify/channels.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "millrace/core/error.hpp"
#include "plan/model/replay.hpp"

namespace millrace::plan {

namespace {

/// The other end of a message and its direction, seen from the rank that acts.
struct End {
  Rank peer;
  Direction direction;
};

End other_end(const Shape& shape, const StageGraph& graph, const Action& action) {
  const bool forward = action.op == Op::SendForward || action.op == Op::RecvForward;
  const auto link = graph.link(action);
  require(link.has_value(),
          [&] { return to_string(action) + " has no partner: the pipeline ends at its stage"; });
  const Stage stage = action.stage == link->from ? link->to : link->from;
  return {shape.rank(action.replica(), stage), forward ? Direction::Forward : Direction::Backward};
}

/// Finds channels by number; a rank talks to few others, so each rank has a short list.
class Directory {
 public:
  explicit Directory(std::size_t ranks) : by_source_(ranks) {}

  Channel& find(Rank source, Rank destination, Direction direction) {
    for (const std::size_t number : by_source_[source.index()])
      if (all[number].destination == destination && all[number].direction == direction)
        return all[number];
    by_source_[source.index()].push_back(all.size());
    return all.emplace_back(Channel{source, destination, direction, {}, {}});
  }

  /// All, by source, destination and direction; the directory is empty afterwards.
  std::vector<Channel> sorted() {
    std::sort(all.begin(), all.end(), [](const Channel& a, const Channel& b) {
      return std::tie(a.source, a.destination, a.direction) <
             std::tie(b.source, b.destination, b.direction);
    });
    return std::move(all);
  }

  std::vector<Channel> all;

 private:
  std::vector<std::vector<std::size_t>> by_source_;
};

}  // namespace

std::vector<Channel> channels(const Graph& graph) {
  const Program& program = graph.program();
  Directory directory(program.ranks.size());
  Node node = 0;
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    const Rank rank{static_cast<std::int32_t>(r)};
    for (const Action& action : program.ranks[r]) {
      if (is_send(action.op)) {
        const End end = other_end(program.shape, graph.stage_graph(), action);
        directory.find(rank, end.peer, end.direction).sends.push_back(node);
      } else if (is_receive(action.op)) {
        const End end = other_end(program.shape, graph.stage_graph(), action);
        directory.find(end.peer, rank, end.direction).receives.push_back(node);
      }
      ++node;
    }
  }
  return directory.sorted();
}

namespace {

/// Whether what the action makes is used on another rank. Requires a chain.
bool leaves(const Graph& graph, Rank rank, const Action& action) {
  bool away = false;
  for_each_link_out(graph.stage_graph(), action, [&](const StageLink& link) {
    const Stage to = action.op == Op::Forward ? link.to : link.from;
    away = graph.program().shape.rank(action.replica(), to) != rank;
  });
  return away;
}

/// Whether the one producer on another rank is the neighbour stage's, as a message would bring it.
bool is_message(const Graph& graph, Rank source, const Action& from, const Action& to) {
  bool brings = false;
  for_each_link_in(graph.stage_graph(), to, [&](const StageLink& link) {
    const Stage giver = to.op == Op::Forward ? link.from : link.to;
    brings = from.stage == giver && (from.op == Op::Forward) == (to.op == Op::Forward) &&
             graph.program().shape.rank(to.replica(), giver) == source;
  });
  return brings;
}

}  // namespace

std::optional<std::vector<Channel>> unwritten_channels(const Graph& graph) {
  if (graph.has_messages() || graph.has_pairs() || graph.has_joint_actions() ||
      graph.has_wrong_lists() || !graph.stage_graph().is_chain())
    return std::nullopt;
  const Program& program = graph.program();
  Directory directory(program.ranks.size());
  std::size_t leaving = 0, arriving = 0;
  Node node = 0;
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    const Rank rank{static_cast<std::int32_t>(r)};
    for (const Action& action : program.ranks[r]) {
      leaving += leaves(graph, rank, action) ? 1U : 0U;
      const auto producers = graph.producers(node);
      if (producers.size() > 1) return std::nullopt;
      for (const Node producer : producers) {
        const Rank source{static_cast<std::int32_t>(holder_beside(graph.first(), r, producer))};
        const Action& from = program.ranks[source.index()][producer - graph.first(source)];
        if (!is_message(graph, source, from, action)) return std::nullopt;
        Channel& channel = directory.find(
            source, rank, action.op == Op::Forward ? Direction::Forward : Direction::Backward);
        channel.written = false;
        channel.sends.push_back(producer);
        channel.receives.push_back(node);
        ++arriving;
      }
      ++node;
    }
  }
  if (leaving != arriving) return std::nullopt;
  for (Channel& channel : directory.all) {
    std::sort(channel.sends.begin(), channel.sends.end());
    if (std::adjacent_find(channel.sends.begin(), channel.sends.end()) != channel.sends.end())
      return std::nullopt;
  }
  return directory.sorted();
}

Waits bounded_waits(const Graph& graph,
                    const std::vector<Channel>& channels,
                    const std::vector<int>& depth) {
  Waits waits{&graph, std::vector<Node>(graph.size(), kNoNode), nullptr};
  for (std::size_t c = 0; c < channels.size(); ++c) {
    const Channel& channel = channels[c];
    if (depth[c] <= 0) {
      const Node first = graph.first(channel.destination);
      for (const Node receive : channel.receives)
        for (const Node send : graph.producers(receive))
          if (receive > first) waits.credit[send] = receive - 1;
      continue;
    }
    const auto room = static_cast<std::size_t>(depth[c]);
    const Node first = graph.first(channel.destination);
    for (std::size_t j = 0; j + room < channel.sends.size(); ++j) {
      // A receive that is not written out is done when all before its user is.
      const Node receive = channel.receives[j];
      if (channel.written || receive > first)
        waits.credit[channel.sends[j + room]] = channel.written ? receive : receive - 1;
    }
  }
  return waits;
}

}  // namespace millrace::plan
