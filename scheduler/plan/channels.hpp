// Channels: the sends and receives of each (source, destination, direction), and the edges that a
// transport adds to the graph because a channel has only so much room.
#pragma once

#include <vector>

#include "millrace/scheduler/plan/verify.hpp"
#include "plan/cycle.hpp"

namespace millrace::plan {

/// One channel of a program with messages.
struct Channel {
  Rank source;
  Rank destination;
  Direction direction = Direction::Forward;
  std::vector<Node> sends;     ///< in the sender's order
  std::vector<Node> receives;  ///< in the receiver's order
};

/// All channels, by source, destination and direction. Throws InvalidArgument for a message at an
/// end of the pipeline.
[[nodiscard]] std::vector<Channel> channels(const Graph& graph);

/// Edges of a transport whose channel c has room for depth[c] messages: SEND j + K waits for
/// RECV j. Depth 0 and less is a rendezvous: a send waits for whatever precedes its receive.
[[nodiscard]] Waits bounded_waits(const Graph& graph,
                                  const std::vector<Channel>& channels,
                                  const std::vector<int>& depth);

}  // namespace millrace::plan
