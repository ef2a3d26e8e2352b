// Data frames: one tensor per frame, a header in front of its bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "millrace/core/tensor.hpp"
#include "millrace/transport/endpoint.hpp"
#include "transport/wire/envelope.hpp"

namespace millrace {

/// The header of one tensor of a message. Its own part as bytes, little-endian:
/// 74 dims u64[6] | 122 sequence u64 | 130 step u64 | 138 micro-batch u32 | 142 stage u16 | 144
/// slice u16 | 146 tensor index u16 | 148 tensor count u16 | 150 replica u8 | 151 edge u8 | 152
/// dtype u8 | 153 number of dims u8 | 154 flags u8 (1: absent tensor, 2: payload is hashed) | 155
/// lead u8; the direction is the frame's kind.
/// Thread-safety: externally synchronised.
struct DataHeader : Envelope {
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
  int lead = 0;  ///< bytes in the payload's part before the tensor's; see padded_bytes

  friend bool operator==(const DataHeader&, const DataHeader&) = default;
};

/// Calls send(header, tensor) for each tensor of a message, once without one for an empty list:
/// `header` with what describes the tensor. `hashes` has one number per tensor, or is empty.
template <class Send>
void for_each_frame(DataHeader header,
                    TensorList& tensors,
                    std::span<const std::uint64_t> hashes,
                    const Send& send) {
  header.tensor_count = static_cast<int>(tensors.size());
  for (std::size_t i = 0; i < std::max<std::size_t>(tensors.size(), 1); ++i) {
    Tensor tensor = tensors.empty() ? Tensor() : std::move(tensors[i]);
    header.tensor_index = static_cast<int>(i);
    header.absent = !tensor;
    header.dtype = tensor.dtype();
    header.dims = tensor ? tensor.dims() : Dims();
    header.payload_bytes = tensor ? tensor.bytes() : 0;
    header.hashed = i < hashes.size();
    header.payload_hash = header.hashed ? hashes[i] : 0;
    send(header, std::move(tensor));
  }
}

/// True for frames that carry a tensor of a message.
[[nodiscard]] constexpr bool carries_tensor(FrameKind kind) {
  return kind == FrameKind::Forward || kind == FrameKind::Backward || kind == FrameKind::Collective;
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
[[nodiscard]] inline std::span<const std::byte> tensor_bytes(const DataHeader& header,
                                                             std::span<const std::byte> part) {
  return part.subspan(static_cast<std::size_t>(header.lead), header.payload_bytes);
}

/// Throws InvalidArgument when a number does not fit its field; see encode.
void check_fields(const MessageTag& tag, std::size_t tensors);

/// The 160 bytes of a header. Throws InvalidArgument when a number does not fit its field: step and
/// sequence 64 bit, micro-batch 31, ranks, stage, slice and tensor counts 16, replica and edge 8,
/// leads 0 to 63. Cost: one hash over 156 bytes.
[[nodiscard]] FrameBytes encode(const DataHeader& header);

/// Checks `header` and the size of the payload part against `expected` and, when nothing is wrong,
/// fills `out` and returns None; a control frame is a State. Never throws, allocates or reads the
/// payload. Cost: one hash over 156 bytes for frames that get that far.
[[nodiscard]] Refusal decode(std::span<const std::byte> header,
                             std::size_t payload_part_bytes,
                             const FrameExpectation& expected,
                             DataHeader& out) noexcept;

/// Checks the data frames of one source, which have sequence numbers without holes.
/// Thread-safety: externally synchronised.
class FrameJudge {
 public:
  explicit FrameJudge(const FrameExpectation& expected) : expectation_(expected) {}

  /// None accepts the frame: `expected()` has moved on. `out` is filled then, and for Duplicate,
  /// Gap, State and Payload. Cost: decode, and payload_hash of a hashed frame.
  [[nodiscard]] Refusal take(std::span<const std::byte> header,
                             std::span<const std::byte> payload,
                             DataHeader& out);

  /// The next sequence number; everything below has arrived.
  [[nodiscard]] std::uint64_t expected() const { return next_; }

  /// True between the first and the last tensor of a message.
  [[nodiscard]] bool inside_message() const { return next_tensor_ != 0; }

  [[nodiscard]] const FrameExpectation& expectation() const { return expectation_; }

 private:
  [[nodiscard]] bool legal(const DataHeader& header) const;

  FrameExpectation expectation_;
  std::uint64_t next_ = 0;
  int next_tensor_ = 0;
  int tensors_ = 0;
  MessageTag tag_;
};

}  // namespace millrace
