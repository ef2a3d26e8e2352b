// Channels: the sends and receives of each (source, destination, direction), and the edges that a
// transport adds to the graph because a channel has only so much room.
#pragma once

#include <optional>
#include <vector>

#include "millrace/scheduler/plan/verify.hpp"
#include "plan/verify/cycle.hpp"

namespace millrace::plan {

/// One channel of a program. Where the program has no messages yet, its ends are the actions that
/// produce and use what would be sent.
struct Channel {
  Rank source;
  Rank destination;
  Direction direction = Direction::Forward;
  std::vector<Node> sends;     ///< in the sender's order
  std::vector<Node> receives;  ///< in the receiver's order
  bool written = true;         ///< whether sends and receives are actions of their own
};

/// All channels, by source, destination and direction. Throws InvalidArgument for a message at an
/// end of the pipeline.
[[nodiscard]] std::vector<Channel> channels(const Graph& graph);

/// The channels that a program of compute actions gets with each send right behind its producer and
/// each receive right before its use: sends are the producers, receives the users. Nothing where
/// the messages must be written out to say: pairs, reductions, or a program that is not whole.
/// Cost: O(actions), 8 bytes per message.
[[nodiscard]] std::optional<std::vector<Channel>> unwritten_channels(const Graph& graph);

/// Edges of a transport whose channel c has room for depth[c] messages: SEND j + K waits for
/// RECV j. Depth 0 and less is a rendezvous: a send waits for whatever precedes its receive.
[[nodiscard]] Waits bounded_waits(const Graph& graph,
                                  const std::vector<Channel>& channels,
                                  const std::vector<int>& depth);

}  // namespace millrace::plan
