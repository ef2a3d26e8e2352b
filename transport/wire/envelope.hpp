// What every frame between processes has in common, data and control alike: a fixed 160-byte header
// whose first 74 bytes say whose it is, to whom, and what the sender has received. What is wrong
// with a frame is found cheapest first and before memory is taken; what an offence is answered with
// is a table, not a habit of the receiver.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "millrace/core/ids.hpp"
#include "transport/mailbox/message_queue.hpp"

namespace millrace {

/// What a frame is for. The first three carry tensors (frame.hpp); every other one is a struct of
/// its own (control.hpp).
enum class FrameKind : std::uint8_t {
  Forward = 1,
  Backward = 2,
  Collective = 3,
  Probe = 4,
  Ack = 5,
  Nack = 6,
  Hello = 7,
  Welcome = 8,
  Refused = 9,
  Progress = 10,
  Abort = 11,
  Bye = 12,
  ByeAck = 13,
  Missing = 14
};

inline constexpr std::uint32_t kFrameMagic = 0x4C49'4D52;  ///< "RMIL"
inline constexpr std::size_t kHeaderBytes = 160;
inline constexpr std::size_t kEnvelopeBytes = 74;  ///< what a kind has of its own begins there
inline constexpr std::size_t kChecksumAt = 156;

/// A header as bytes, little-endian:
/// 0 magic u32 | 4 version u16 | 6 header bytes u16 | 8 job u64 | 16 epoch u32 | 20 source u16 |
/// 22 destination u16 | 24 acknowledged u64 | 32 taken u64[3] | 56 payload bytes u64 | 64 payload
/// xxh3 u64 | 72 kind u8 | 73 wanted lead u8 | 74 of the kind's own | 156 checksum u32
using FrameBytes = std::array<std::byte, kHeaderBytes>;

/// What every frame says. Thread-safety: externally synchronised.
struct Envelope {
  std::uint64_t job = 0;    ///< one run of one job; chosen by who starts it
  std::uint32_t epoch = 0;  ///< one incarnation of the set of endpoints
  Rank source;
  Rank destination;
  std::uint64_t acknowledged = 0;  ///< everything below has arrived here
  TakenCounts taken{};             ///< messages taken
  int wished_lead = 0;             ///< what would put large tensors on a boundary here

  friend bool operator==(const Envelope&, const Envelope&) = default;
};

/// Why a frame is not taken.
enum class Refusal : std::uint8_t {
  None,
  UnknownPeer,  ///< the connection is not that of a rank of this job
  PartCount,    ///< not exactly header and payload
  HeaderSize,   ///< not 160 bytes
  Magic,        ///< not ours
  Version,      ///< another protocol version
  Checksum,     ///< header bytes were changed on the way
  Enumeration,  ///< kind, dtype, number of dims, flags, or a control field's word out of range
  Reserved,     ///< a bit that must be zero is not
  Job,          ///< of another job
  Epoch,        ///< of another incarnation
  Edge,         ///< source or destination is not this connection
  Shape,        ///< an extent is too large, negative, or set where none belongs
  Bounds,       ///< a control frame's number is outside of what it can be
  Size,         ///< payload bytes, dtype x shape and part disagree, or exceed the agreed size
  Duplicate,    ///< sequence number already seen
  Gap,          ///< sequence numbers are missing
  State,        ///< kind, tag, tensor index or depth is not legal here and now
  Payload       ///< payload bytes were changed on the way
};

inline constexpr int kRefusals = static_cast<int>(Refusal::Payload) + 1;

/// What the receiver does about it.
enum class Answer : std::uint8_t {
  Accept,
  Drop,             ///< counted, nothing else
  DropAcknowledge,  ///< dropped; the acknowledgement is repeated
  AskAgain,         ///< dropped; a NACK asks for it, a bounded number of times
  Abort             ///< a known peer that lies is broken: the epoch ends
};

/// The table. A damaged header counts as a lost frame: its sequence number is asked for again.
[[nodiscard]] constexpr Answer answer_to(Refusal refusal) {
  switch (refusal) {
    case Refusal::None:
      return Answer::Accept;
    case Refusal::UnknownPeer:
    case Refusal::Job:
    case Refusal::Epoch:
      return Answer::Drop;
    case Refusal::Duplicate:
      return Answer::DropAcknowledge;
    case Refusal::Checksum:
    case Refusal::Gap:
    case Refusal::Payload:
      return Answer::AskAgain;
    case Refusal::PartCount:
    case Refusal::HeaderSize:
    case Refusal::Magic:
    case Refusal::Version:
    case Refusal::Enumeration:
    case Refusal::Reserved:
    case Refusal::Edge:
    case Refusal::Shape:
    case Refusal::Bounds:
    case Refusal::Size:
    case Refusal::State:
      return Answer::Abort;
  }
  return Answer::Abort;
}

[[nodiscard]] const char* name_of(Refusal refusal);

/// What one connection may carry.
/// Thread-safety: immutable, share freely.
struct FrameExpectation {
  std::uint64_t job = 0;
  std::uint32_t epoch = 0;
  Rank source;
  Rank destination;
  std::uint64_t largest_payload = 0;  ///< bytes agreed for this edge
};

/// What stands between the envelope's fields and the kind's own.
struct Payload {
  std::uint64_t bytes = 0;
  std::uint64_t hash = 0;
};

/// Writes what all kinds share; the kind's own part is zero and the checksum still missing. Throws
/// InvalidArgument when a rank does not fit 16 bits or the lead is not from 0 to 63.
[[nodiscard]] FrameBytes begin_frame(FrameKind kind,
                                     const Envelope& envelope,
                                     const Payload& payload);

/// Checks size, magic, version, checksum, kind and lead. Never throws. Cost: one hash over 156
/// bytes for frames that get that far.
[[nodiscard]] Refusal check_envelope(std::span<const std::byte> header) noexcept;

/// Checks that a well-formed header is of this connection.
[[nodiscard]] Refusal check_connection(std::span<const std::byte> header,
                                       const FrameExpectation& expected) noexcept;

/// Of a header that was checked.
[[nodiscard]] Envelope envelope_of(std::span<const std::byte> header) noexcept;
[[nodiscard]] Payload payload_of(std::span<const std::byte> header) noexcept;

/// The kind that a header claims, checked or not; nothing where it is too short to claim any.
[[nodiscard]] std::optional<FrameKind> claimed_kind(std::span<const std::byte> header) noexcept;

/// The protocol version that a header claims, when it is ours by its magic number alone: what a
/// meeting names instead of dropping it. Nothing for headers of this version and for garbage.
[[nodiscard]] std::optional<std::uint16_t> other_version(
    std::span<const std::byte> header) noexcept;

/// Writes the checksum of the first 156 bytes into the last four; what a mutator that wants to get
/// past the checksum calls.
void repair_checksum(std::span<std::byte, kHeaderBytes> header) noexcept;

/// XXH3 (64 bit) of a payload. Finds damage, not attackers. About 50 us per MiB with AVX2.
[[nodiscard]] std::uint64_t payload_hash(std::span<const std::byte> payload) noexcept;

/// The same while copying it to where it does not lie: each part is read once from memory.
[[nodiscard]] std::uint64_t copy_hashed(std::span<const std::byte> payload, std::byte* to) noexcept;

}  // namespace millrace
