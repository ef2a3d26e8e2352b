// The wire format between processes: one tensor per frame, a fixed 160-byte header in front of its
// bytes. Everything about a received header is checked here, cheapest first and before memory is
// taken; what an offence is answered with is a table, not a habit of the receiver.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "millrace/core/dims.hpp"
#include "millrace/core/dtype.hpp"
#include "millrace/core/ids.hpp"
#include "millrace/core/tensor.hpp"
#include "millrace/transport/endpoint.hpp"

namespace millrace {

/// What a frame is for. The first three carry tensors and map to Direction.
enum class FrameKind : std::uint8_t {
  Forward = 1,
  Backward = 2,
  Collective = 3,
  Probe = 4,      ///< sender asks: did everything below `sequence` arrive? Travels with the data;
                  ///< its micro-batch is the number of the last NACK that the sender has obeyed
  Ack = 5,        ///< only what every frame says
  Nack = 6,       ///< send again from `acknowledged` on; its micro-batch counts these questions,
                  ///< from 1, and each is obeyed once
  Hello = 7,      ///< who I am and what I was built for
  Welcome = 8,    ///< everybody agrees; payload: the addresses of all ranks
  Refused = 9,    ///< somebody disagrees; payload: the field
  Progress = 10,  ///< payload: what this rank does now; `sequence` counts what it did
  Abort = 11,     ///< payload: why everybody must stop
  Bye = 12,       ///< nothing more will come
  ByeAck = 13
};

inline constexpr std::uint32_t kFrameMagic = 0x4C49'4D52;  ///< "RMIL"
inline constexpr std::uint16_t kProtocolVersion = 3;
inline constexpr std::size_t kHeaderBytes = 160;

/// Messages taken by a receiver, per Direction.
using TakenCounts = std::array<std::uint64_t, 3>;

/// A header as bytes, little-endian:
/// 0 magic u32 | 4 version u16 | 6 header bytes u16 | 8 job u64 | 16 step u64 | 24 sequence u64 |
/// 32 dims u64[6] | 80 payload bytes u64 | 88 payload xxh3 u64 | 96 epoch u32 | 100 micro-batch u32
/// | 104 source u16 | 106 destination u16 | 108 stage u16 | 110 tensor index u16 | 112 kind u8 |
/// 113 dtype u8 | 114 number of dims u8 | 115 flags u8 (1: absent tensor, 2: payload is hashed) |
/// 116 slice u16 | 118 replica u8 | 119 edge u8 | 120 tensor count u16 | 122 lead u8 | 123 wished
/// lead u8 | 124 acknowledged u64 | 132 taken u64[3] | 156 checksum u32
using FrameBytes = std::array<std::byte, kHeaderBytes>;

/// A header as values. `tag.direction` follows from `kind` for frames that carry tensors.
/// Thread-safety: externally synchronised.
struct FrameHeader {
  FrameKind kind = FrameKind::Forward;
  std::uint64_t job = 0;    ///< one run of one job; chosen by who starts it
  std::uint32_t epoch = 0;  ///< one incarnation of the set of endpoints
  Rank source;
  Rank destination;
  std::uint64_t sequence = 0;  ///< per (source, destination), from 0, without holes
  MessageTag tag;
  int tensor_index = 0;
  int tensor_count = 0;  ///< of the message; 0 for an empty list
  bool absent = false;   ///< the tensor is a default-constructed one ("no gradient here")
  bool hashed = false;   ///< payload_hash is meant
  DType dtype = DType::U8;
  Dims dims;
  std::uint64_t payload_bytes = 0;
  std::uint64_t payload_hash = 0;
  std::uint64_t acknowledged = 0;  ///< every frame says: everything below has arrived here
  TakenCounts taken{};             ///< and: so many messages were taken
  int lead = 0;         ///< bytes in the payload's part before the tensor's; see padded_bytes
  int wished_lead = 0;  ///< every frame says: what would put large tensors on a boundary here

  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};

/// Why a frame is not taken, in the order in which it is checked.
enum class Refusal : std::uint8_t {
  None,
  Stranger,     ///< the connection is not that of a rank of this job
  PartCount,    ///< not exactly header and payload
  HeaderSize,   ///< not 160 bytes
  Magic,        ///< not ours
  Version,      ///< another protocol version
  Checksum,     ///< header bytes were changed on the way
  Enumeration,  ///< kind, dtype, number of dims or flags out of range
  Reserved,     ///< a bit that must be zero is not
  Job,          ///< of another job
  Epoch,        ///< of another incarnation
  Edge,         ///< source or destination is not this connection
  Shape,        ///< an extent is too large, negative, or set where none belongs
  Size,         ///< payload bytes, dtype x shape and part disagree, or exceed the agreed size
  Duplicate,    ///< sequence number already seen
  Gap,          ///< sequence numbers are missing
  State,        ///< tag, tensor index or depth is not legal now
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
    case Refusal::Stranger:
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
    case Refusal::Size:
    case Refusal::State:
      return Answer::Abort;
  }
  return Answer::Abort;
}

[[nodiscard]] const char* name_of(Refusal refusal);
[[nodiscard]] const char* name_of(FrameKind kind);

/// What one connection may carry.
/// Thread-safety: immutable, share freely.
struct FrameExpectation {
  std::uint64_t job = 0;
  std::uint32_t epoch = 0;
  Rank source;
  Rank destination;
  std::uint64_t largest_payload = 0;  ///< bytes agreed for this edge
};

/// True for frames that carry a tensor of a message.
[[nodiscard]] constexpr bool carries_tensor(FrameKind kind) {
  return kind == FrameKind::Forward || kind == FrameKind::Backward || kind == FrameKind::Collective;
}

[[nodiscard]] constexpr FrameKind kind_of(Direction direction) {
  switch (direction) {
    case Direction::Forward:
      return FrameKind::Forward;
    case Direction::Backward:
      return FrameKind::Backward;
    case Direction::Collective:
      return FrameKind::Collective;
  }
  return FrameKind::Collective;
}

/// Size of the payload's part of a frame: the tensor's bytes alone, or, with a lead, a multiple of
/// 64 less 48 that holds lead and tensor. The receiver's allocator puts parts of such sizes where
/// the one before lay, seen from a 64-byte boundary, so that the lead that was right stays right.
[[nodiscard]] constexpr std::uint64_t padded_bytes(int lead, std::uint64_t bytes) {
  if (lead == 0) return bytes;
  constexpr std::uint64_t kOverhead = 48;  // of a block: libzmq's 40 bytes, the allocator's 8
  const std::uint64_t whole = static_cast<std::uint64_t>(lead) + bytes + kOverhead;
  return (whole + kAlignment - 1) / kAlignment * kAlignment - kOverhead;
}

/// The tensor's bytes in the payload's part of a frame whose header was decoded.
[[nodiscard]] inline std::span<const std::byte> tensor_bytes(const FrameHeader& header,
                                                             std::span<const std::byte> part) {
  return part.subspan(static_cast<std::size_t>(header.lead), header.payload_bytes);
}

/// The 160 bytes of a header. Throws InvalidArgument when a number does not fit its field: step and
/// sequence 64 bit, micro-batch 32, ranks, stage, slice and tensor counts 16, replica and edge 8,
/// leads 0 to 63. Cost: one hash over 156 bytes.
[[nodiscard]] FrameBytes encode(const FrameHeader& header);

/// Checks `header` and the size of the payload part against `expected` and, when nothing is wrong,
/// fills `out` and returns None. Never throws, allocates or reads the payload. Cost: one hash over
/// 156 bytes for frames that get that far.
[[nodiscard]] Refusal decode(std::span<const std::byte> header,
                             std::size_t payload_part_bytes,
                             const FrameExpectation& expected,
                             FrameHeader& out) noexcept;

/// The protocol version that a header claims, when it is ours by its magic number alone: what a
/// meeting names instead of dropping it. Nothing for headers of this version and for garbage.
[[nodiscard]] std::optional<std::uint16_t> other_version(
    std::span<const std::byte> header) noexcept;

/// Writes the checksum of the first 156 bytes into the last four; what a mutator that wants to get
/// past the checksum calls.
void repair_checksum(std::span<std::byte, kHeaderBytes> header) noexcept;

/// XXH3 (64 bit) of a payload. Finds damage, not attackers. About 50 us per MiB with AVX2.
[[nodiscard]] std::uint64_t payload_hash(std::span<const std::byte> payload) noexcept;

}  // namespace millrace
