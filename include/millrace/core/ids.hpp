// Strong integer ids. Everything in pipeline scheduling is a small integer; distinct types let the
// compiler refuse a stage where a rank was meant. Counts stay plain `int` with plural names.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace millrace {

/// An integer that only compares with its own kind. `Rank{3}.value == 3`.
/// Thread-safety: immutable, share freely.
template <class Kind>
struct Id {
  std::int32_t value = 0;

  constexpr Id() = default;

  explicit constexpr Id(std::int32_t number) : value(number) {}

  /// The id as a container index.
  [[nodiscard]] constexpr std::size_t index() const { return static_cast<std::size_t>(value); }

  constexpr Id& operator++() {
    ++value;
    return *this;
  }

  friend constexpr auto operator<=>(const Id&, const Id&) = default;
};

using Rank = Id<struct RankKind>;              ///< who executes stages, 0..p-1
using Stage = Id<struct StageKind>;            ///< consecutive layers, 0..S-1
using MicroBatch = Id<struct MicroBatchKind>;  ///< part of a mini-batch, 0..m-1
using Slice = Id<struct SliceKind>;            ///< part of a micro-batch along the sequence, 0..q-1
using Replica = Id<struct ReplicaKind>;        ///< copy of the model in a bidirectional pipeline

/// What flows through the pipeline as one piece: a slice of a micro-batch.
struct Unit {
  MicroBatch micro_batch;
  Slice slice;

  friend constexpr auto operator<=>(const Unit&, const Unit&) = default;
};

/// Which way a message flows: activations towards the last stage, gradients towards the first, or a
/// collective's part.
enum class Direction : std::uint8_t { Forward, Backward, Collective };

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
  /// no credit message.
  bool answered = false;
  /// Tensors of its messages, by size, ascending; empty if unknown.
  std::vector<ChannelTensors> tensors = {};
};

}  // namespace millrace
template <class Kind>
struct std::hash<millrace::Id<Kind>> {
  std::size_t operator()(millrace::Id<Kind> id) const noexcept {
    return std::hash<std::int32_t>{}(id.value);
  }
};
