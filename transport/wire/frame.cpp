// Arithmetic on received numbers never overflows.
#include "transport/wire/frame.hpp"

#include <array>
#include <limits>
#include <optional>

#include "transport/wire/numbers.hpp"

namespace millrace {

namespace {

using wire::get;
using wire::narrow;
using wire::put;

// Offsets of the fields; see DataHeader.
enum Field : std::size_t {
  kDims = kEnvelopeBytes,
  kSequence = 122,
  kStep = 130,
  kMicroBatch = 138,
  kStage = 142,
  kSlice = 144,
  kTensorIndex = 146,
  kTensorCount = 148,
  kReplica = 150,
  kEdge = 151,
  kDType = 152,
  kDimCount = 153,
  kFlags = 154,
  kLead = 155
};

constexpr std::uint8_t kAbsentFlag = 1;
constexpr std::uint8_t kHashedFlag = 2;
constexpr std::uint64_t kLargestExtent = std::uint64_t{1} << 40U;

FrameKind kind_of(Direction direction) {
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

Direction direction_of(FrameKind kind) noexcept {
  if (kind == FrameKind::Forward) return Direction::Forward;
  return kind == FrameKind::Backward ? Direction::Backward : Direction::Collective;
}

Refusal check_words(std::span<const std::byte> bytes) noexcept {
  if (!carries_tensor(*claimed_kind(bytes))) return Refusal::State;
  if (get<std::uint8_t>(bytes, kDType) > static_cast<std::uint8_t>(DType::U8) ||
      get<std::uint8_t>(bytes, kDimCount) > Dims::kMax ||
      get<std::uint8_t>(bytes, kFlags) > (kAbsentFlag | kHashedFlag))
    return Refusal::Enumeration;
  return get<std::uint8_t>(bytes, kLead) < kAlignment ? Refusal::None : Refusal::Reserved;
}

/// Bytes of the tensor that the dims describe, without overflow; nothing where they are none.
std::optional<std::uint64_t> bytes_of_shape(std::span<const std::byte> bytes) noexcept {
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  const auto count = get<std::uint8_t>(bytes, kDimCount);
  std::uint64_t product = size_of(static_cast<DType>(get<std::uint8_t>(bytes, kDType)));
  for (std::size_t i = 0; i < Dims::kMax; ++i) {
    const auto extent = get<std::uint64_t>(bytes, kDims + 8 * i);
    if (extent > (i < count ? kLargestExtent : 0)) return std::nullopt;
    if (i >= count) continue;
    if (__builtin_mul_overflow(product, extent, &product) || product > kMost) return std::nullopt;
  }
  return product;
}

/// Shape and bytes. An absent tensor and an empty list have neither.
Refusal check_size(std::span<const std::byte> bytes,
                   std::size_t part,
                   std::uint64_t largest) noexcept {
  if (get<std::uint32_t>(bytes, kMicroBatch) > std::numeric_limits<std::int32_t>::max())
    return Refusal::Shape;
  const auto shape = bytes_of_shape(bytes);
  if (!shape) return Refusal::Shape;
  const auto claimed = payload_of(bytes).bytes;
  const auto tensors = get<std::uint16_t>(bytes, kTensorCount);
  const auto index = get<std::uint16_t>(bytes, kTensorIndex);
  const bool absent = (get<std::uint8_t>(bytes, kFlags) & kAbsentFlag) != 0;
  const int lead = get<std::uint8_t>(bytes, kLead);
  if (index >= std::max<std::uint16_t>(tensors, 1)) return Refusal::Shape;
  if (absent) {
    if (get<std::uint8_t>(bytes, kDimCount) != 0 || claimed != 0 || lead != 0)
      return Refusal::Shape;
  } else if (tensors == 0) {
    return Refusal::Shape;
  }
  if (claimed > largest || padded_bytes(lead, claimed) != part) return Refusal::Size;
  return absent || claimed == *shape ? Refusal::None : Refusal::Size;
}

Dims dims_of(std::span<const std::byte> bytes) noexcept {
  std::array<std::int64_t, Dims::kMax> extents{};
  const auto count = get<std::uint8_t>(bytes, kDimCount);
  for (std::size_t i = 0; i < count; ++i) extents[i] = get<std::int64_t>(bytes, kDims + 8 * i);
  return Dims(std::span<const std::int64_t>(extents.data(), count));
}

void read(std::span<const std::byte> bytes, DataHeader& out) noexcept {
  static_cast<Envelope&>(out) = envelope_of(bytes);
  const auto [payload_bytes, payload_hash] = payload_of(bytes);
  out.payload_bytes = payload_bytes;
  out.payload_hash = payload_hash;
  out.sequence = get<std::uint64_t>(bytes, kSequence);
  out.tag.step = get<std::uint64_t>(bytes, kStep);
  out.tag.direction = direction_of(*claimed_kind(bytes));
  out.tag.replica = Replica{get<std::uint8_t>(bytes, kReplica)};
  out.tag.edge = get<std::uint8_t>(bytes, kEdge);
  out.tag.stage = Stage{get<std::uint16_t>(bytes, kStage)};
  out.tag.micro_batch = MicroBatch{get<std::int32_t>(bytes, kMicroBatch)};
  out.tag.slice = Slice{get<std::uint16_t>(bytes, kSlice)};
  out.tensor_index = get<std::uint16_t>(bytes, kTensorIndex);
  out.tensor_count = get<std::uint16_t>(bytes, kTensorCount);
  const auto flags = get<std::uint8_t>(bytes, kFlags);
  out.absent = (flags & kAbsentFlag) != 0;
  out.hashed = (flags & kHashedFlag) != 0;
  out.dtype = static_cast<DType>(get<std::uint8_t>(bytes, kDType));
  out.dims = dims_of(bytes);
  out.lead = get<std::uint8_t>(bytes, kLead);
}

std::uint8_t flags_of(const DataHeader& header) {
  return static_cast<std::uint8_t>((header.absent ? kAbsentFlag : 0) |
                                   (header.hashed ? kHashedFlag : 0));
}

}  // namespace

void check_fields(const MessageTag& tag, std::size_t tensors) {
  require(tag.micro_batch.value >= 0,
          [&] { return "micro-batch " + std::to_string(tag.micro_batch.value) + " is below 0"; });
  static_cast<void>(narrow(tag.stage.value, "stage"));
  static_cast<void>(narrow(tag.slice.value, "slice"));
  static_cast<void>(narrow(static_cast<std::int64_t>(tensors), "tensor count"));
  static_cast<void>(narrow<std::uint8_t>(tag.replica.value, "replica"));
}

FrameBytes encode(const DataHeader& header) {
  FrameBytes bytes = begin_frame(
      kind_of(header.tag.direction), header, {header.payload_bytes, header.payload_hash});
  for (std::size_t i = 0; i < header.dims.size(); ++i) put(bytes, kDims + 8 * i, header.dims[i]);
  put(bytes, kSequence, header.sequence);
  put(bytes, kStep, header.tag.step);
  check_fields(header.tag, static_cast<std::size_t>(header.tensor_count));
  put(bytes, kMicroBatch, header.tag.micro_batch.value);
  put(bytes, kStage, static_cast<std::uint16_t>(header.tag.stage.value));
  put(bytes, kSlice, static_cast<std::uint16_t>(header.tag.slice.value));
  put(bytes, kTensorIndex, narrow(header.tensor_index, "tensor index"));
  put(bytes, kTensorCount, static_cast<std::uint16_t>(header.tensor_count));
  put(bytes, kReplica, static_cast<std::uint8_t>(header.tag.replica.value));
  put(bytes, kEdge, header.tag.edge);
  put(bytes, kDType, static_cast<std::uint8_t>(header.dtype));
  put(bytes, kDimCount, static_cast<std::uint8_t>(header.dims.size()));
  put(bytes, kFlags, flags_of(header));
  require(header.lead >= 0 && header.lead < static_cast<int>(kAlignment),
          [&] { return "a lead is " + std::to_string(header.lead) + ", but 0 to 63"; });
  put(bytes, kLead, static_cast<std::uint8_t>(header.lead));
  repair_checksum(bytes);
  return bytes;
}

Refusal decode(std::span<const std::byte> header,
               std::size_t payload_part_bytes,
               const FrameExpectation& expected,
               DataHeader& out) noexcept {
  if (const Refusal wrong = check_envelope(header); wrong != Refusal::None) return wrong;
  if (const Refusal wrong = check_connection(header, expected); wrong != Refusal::None)
    return wrong;
  if (const Refusal wrong = check_words(header); wrong != Refusal::None) return wrong;
  const Refusal wrong = check_size(header, payload_part_bytes, expected.largest_payload);
  if (wrong == Refusal::None) read(header, out);
  return wrong;
}

bool FrameJudge::legal(const DataHeader& header) const {
  if (header.tensor_index != next_tensor_) return false;
  return next_tensor_ == 0 || (header.tag == tag_ && header.tensor_count == tensors_);
}

Refusal FrameJudge::take(std::span<const std::byte> header,
                         std::span<const std::byte> payload,
                         DataHeader& out) {
  const Refusal wrong = decode(header, payload.size(), expectation_, out);
  if (wrong != Refusal::None) return wrong;
  if (out.sequence != next_) return out.sequence > next_ ? Refusal::Gap : Refusal::Duplicate;
  if (!legal(out)) return Refusal::State;
  if (out.hashed && payload_hash(tensor_bytes(out, payload)) != out.payload_hash)
    return Refusal::Payload;
  ++next_;
  tag_ = out.tag;
  tensors_ = out.tensor_count;
  next_tensor_ = out.tensor_index + 1 < out.tensor_count ? out.tensor_index + 1 : 0;
  return Refusal::None;
}

}  // namespace millrace
