// Collects channels in one pass and turns their depths into edges.
#include "plan/channels.hpp"

#include <algorithm>
#include <tuple>

#include "millrace/core/error.hpp"

namespace millrace::plan {

namespace {

/// The other end of a message and its direction, seen from the rank that acts.
struct End {
  Rank peer;
  Direction direction;
};

End other_end(const Shape& shape, const Action& action) {
  const bool forward = action.op == Op::SendForward || action.op == Op::RecvForward;
  const bool up = action.op == Op::SendForward || action.op == Op::RecvBackward;
  const Stage stage{action.stage.value + (up ? 1 : -1)};
  require(stage.value >= 0 && stage.value < shape.stages(),
          to_string(action) + " has no partner: the pipeline ends at its stage");
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
        const End end = other_end(program.shape, action);
        directory.find(rank, end.peer, end.direction).sends.push_back(node);
      } else if (is_receive(action.op)) {
        const End end = other_end(program.shape, action);
        directory.find(end.peer, rank, end.direction).receives.push_back(node);
      }
      ++node;
    }
  }
  std::sort(directory.all.begin(), directory.all.end(), [](const Channel& a, const Channel& b) {
    return std::tie(a.source, a.destination, a.direction) <
           std::tie(b.source, b.destination, b.direction);
  });
  return directory.all;
}

Waits bounded_waits(const Graph& graph,
                    const std::vector<Channel>& channels,
                    const std::vector<int>& depth) {
  Waits waits{&graph, std::vector<Node>(graph.size(), kNoNode), false};
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
    for (std::size_t j = 0; j + room < channel.sends.size(); ++j)
      waits.credit[channel.sends[j + room]] = channel.receives[j];
  }
  return waits;
}

}  // namespace millrace::plan
