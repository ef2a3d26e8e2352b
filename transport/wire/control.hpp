// Control frames: what ranks say to each other besides tensors. Each kind is a struct whose fields
// are its own; the one place that writes and reads them, with the bounds of each, is control.cpp.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>

#include "millrace/transport/endpoint.hpp"
#include "transport/liveness/activity.hpp"
#include "transport/wire/envelope.hpp"

namespace millrace {

/// Did everything below `sequence` arrive? Travels after the data, on its connection.
struct Probe {
  static constexpr FrameKind kKind = FrameKind::Probe;
  std::uint64_t sequence = 0;
  std::uint64_t question = 0;  ///< the sender's last question about room; 0 before the first
  std::int32_t obeyed = 0;     ///< the last Nack that the sender has obeyed; 0 before the first

  friend bool operator==(const Probe&, const Probe&) = default;
};

/// What every frame says, and which question of the receiver's that answers.
struct Ack {
  static constexpr FrameKind kKind = FrameKind::Ack;
  std::uint64_t question = 0;

  friend bool operator==(const Ack&, const Ack&) = default;
};

/// Send again from `from` on. Questions are numbered from 1, and each is obeyed once.
struct Nack {
  static constexpr FrameKind kKind = FrameKind::Nack;
  std::uint64_t from = 0;
  std::int32_t number = 1;

  friend bool operator==(const Nack&, const Nack&) = default;
};

/// What this rank does, since `age`: clocks of two machines have nothing to do with each other, so
/// the activity's own time stays at home.
struct Progress {
  static constexpr FrameKind kKind = FrameKind::Progress;
  Activity activity;
  std::chrono::nanoseconds age{};
};

/// Every rank must stop.
struct Abort {
  static constexpr FrameKind kKind = FrameKind::Abort;
  FailureCause cause = FailureCause::Cancelled;
  std::string text;

  friend bool operator==(const Abort&, const Abort&) = default;
};

/// Says all by its kind.
template <FrameKind kind>
struct EmptyControl {
  static constexpr FrameKind kKind = kind;
  friend bool operator==(const EmptyControl&, const EmptyControl&) = default;
};

using Bye = EmptyControl<FrameKind::Bye>;  ///< nothing more will come
using ByeAck = EmptyControl<FrameKind::ByeAck>;

/// Says all by its kind and its text.
template <FrameKind kind>
struct TextControl {
  static constexpr FrameKind kKind = kind;
  std::string text;

  friend bool operator==(const TextControl&, const TextControl&) = default;
};

using Hello = TextControl<FrameKind::Hello>;  ///< who I am and what I was built for
/// Rank 0 has heard the hello; the text lists the ranks that have not come, and may ask the process
/// whether it is still there (missing_text).
using Missing = TextControl<FrameKind::Missing>;
using Welcome = TextControl<FrameKind::Welcome>;  ///< all ranks agree; their addresses
using Refused = TextControl<FrameKind::Refused>;  ///< a rank disagrees; the difference

using Control =
    std::variant<Probe, Ack, Nack, Progress, Abort, Bye, ByeAck, Hello, Missing, Welcome, Refused>;

/// A control frame as it travels: the fields in the header, the text after it.
struct ControlBytes {
  FrameBytes header{};
  std::string text;
};

/// Throws InvalidArgument for a number outside of its field's bounds. Cost: one hash over 156 bytes
/// and one over the text.
[[nodiscard]] ControlBytes encode(const Envelope& envelope, const Control& control);

/// Checks everything, the text's hash last, and, when nothing is wrong, fills both and returns
/// None; a data frame is a State. Takes memory for texts only, of at most
/// `expected.largest_payload` bytes.
[[nodiscard]] Refusal decode(std::span<const std::byte> header,
                             std::span<const std::byte> text,
                             const FrameExpectation& expected,
                             Envelope& envelope,
                             Control& control);

}  // namespace millrace
