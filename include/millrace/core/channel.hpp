// Channels: what plan computes depths for and transports declare depths on. In the core because the
// two rooms do not know each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "millrace/core/ids.hpp"

namespace millrace {

/// Which way a message flows: activations towards the last stage, gradients towards the first, or a
/// collective's part.
enum class Direction : std::uint8_t { Forward, Backward, Collective };

/// What processes agree on by a collective; reports name it.
enum class Label : std::uint8_t {
  Values,  ///< whatever a user's program agrees on
  Model,
  Data,
  Loss,
  TiedWeights,
  GradientNorm,
  WeightsHash,
  Measurement,
  Settings,
  Checkpoint,
  OptimizerShards
};

/// Tensors of a channel that have one size.
struct ChannelTensors {
  std::size_t bytes = 0;  ///< of the largest of them
  int most = 0;           ///< that are under way, or kept by their receiver, at once
};

/// Room of one channel: how many messages may be sent and not yet received.
/// Thread-safety: immutable, share freely.
struct ChannelDepth {
  Rank source;
  Rank destination;
  Direction direction = Direction::Forward;
  int depth = 1;
  /// The depth was counted with what the sender learns from the receiver's own messages: it need
  /// not be told of room in another way.
  bool answered = false;
  /// What its messages bring, by size, ascending; empty where nobody knows.
  std::vector<ChannelTensors> tensors = {};
};

}  // namespace millrace
