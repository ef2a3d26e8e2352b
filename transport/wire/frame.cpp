// Encoding, decoding and checking of frame headers. The order of the checks is the order of their
// cost; arithmetic on received numbers never overflows.
#include "millrace/transport/frame.hpp"

#include <cstring>
#include <limits>
#include <string>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace millrace {

namespace {

// Offsets of the fields; see FrameBytes.
enum Field : std::size_t {
  kMagic = 0,
  kVersion = 4,
  kSize = 6,
  kJob = 8,
  kStep = 16,
  kSequence = 24,
  kDims = 32,
  kPayloadBytes = 80,
  kPayloadHash = 88,
  kEpoch = 96,
  kMicroBatch = 100,
  kSource = 104,
  kDestination = 106,
  kStage = 108,
  kTensorIndex = 110,
  kKind = 112,
  kDType = 113,
  kDimCount = 114,
  kFlags = 115,
  kSlice = 116,
  kReplica = 118,
  kEdge = 119,
  kTensorCount = 120,
  kLead = 122,
  kWishedLead = 123,
  kAcknowledged = 124,
  kTaken = 132,
  kChecksum = 156
};

constexpr std::uint8_t kAbsentFlag = 1;
constexpr std::uint8_t kHashedFlag = 2;
constexpr std::uint64_t kLargestExtent = std::uint64_t{1} << 40U;

template <class T>
void put(FrameBytes& bytes, std::size_t at, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i)
    bytes[at + i] = static_cast<std::byte>((static_cast<std::uint64_t>(value) >> (8 * i)) & 0xFFU);
}

template <class T>
T get(std::span<const std::byte> bytes, std::size_t at) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    value |= std::to_integer<std::uint64_t>(bytes[at + i]) << (8 * i);
  return static_cast<T>(value);
}

template <class Field = std::uint16_t>
Field narrow(std::int64_t value, const char* what) {
  constexpr auto kMost = std::numeric_limits<Field>::max();
  require(value >= 0 && value <= kMost, [&] {
    return std::string(what) + " is " + std::to_string(value) +
           ", but a frame's field for it holds 0 to " + std::to_string(kMost);
  });
  return static_cast<Field>(value);
}

std::uint8_t lead_of(int lead) {
  require(lead >= 0 && lead < static_cast<int>(kAlignment),
          [&] { return "a lead is " + std::to_string(lead) + ", but 0 to 63"; });
  return static_cast<std::uint8_t>(lead);
}

std::uint32_t checksum(std::span<const std::byte> header) noexcept {
  return static_cast<std::uint32_t>(XXH3_64bits(header.data(), kChecksum));
}

Refusal check_envelope(std::span<const std::byte> bytes) noexcept {
  if (bytes.size() != kHeaderBytes) return Refusal::HeaderSize;
  if (get<std::uint32_t>(bytes, kMagic) != kFrameMagic) return Refusal::Magic;
  if (get<std::uint16_t>(bytes, kVersion) != kProtocolVersion) return Refusal::Version;
  if (get<std::uint16_t>(bytes, kSize) != kHeaderBytes) return Refusal::HeaderSize;
  if (get<std::uint32_t>(bytes, kChecksum) != checksum(bytes)) return Refusal::Checksum;
  const auto kind = get<std::uint8_t>(bytes, kKind);
  const bool known = kind >= static_cast<std::uint8_t>(FrameKind::Forward) &&
                     kind <= static_cast<std::uint8_t>(FrameKind::ByeAck);
  if (!known || get<std::uint8_t>(bytes, kDType) > static_cast<std::uint8_t>(DType::U8) ||
      get<std::uint8_t>(bytes, kDimCount) > Dims::kMax ||
      get<std::uint8_t>(bytes, kFlags) > (kAbsentFlag | kHashedFlag))
    return Refusal::Enumeration;
  if (get<std::uint8_t>(bytes, kLead) >= kAlignment ||
      get<std::uint8_t>(bytes, kWishedLead) >= kAlignment)
    return Refusal::Reserved;
  return Refusal::None;
}

Refusal check_edge(std::span<const std::byte> bytes, const FrameExpectation& expected) noexcept {
  if (get<std::uint64_t>(bytes, kJob) != expected.job) return Refusal::Job;
  if (get<std::uint32_t>(bytes, kEpoch) != expected.epoch) return Refusal::Epoch;
  if (get<std::uint16_t>(bytes, kSource) != expected.source.value ||
      get<std::uint16_t>(bytes, kDestination) != expected.destination.value)
    return Refusal::Edge;
  if (get<std::uint32_t>(bytes, kMicroBatch) > std::numeric_limits<std::int32_t>::max())
    return Refusal::Shape;
  return Refusal::None;
}

/// Bytes of the tensor that the dims describe, without overflow; nothing where they are none.
std::optional<std::uint64_t> bytes_of_shape(std::span<const std::byte> bytes,
                                            bool tensor) noexcept {
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  const std::uint64_t most = tensor ? kLargestExtent : kMost;
  const auto count = get<std::uint8_t>(bytes, kDimCount);
  std::uint64_t product = size_of(static_cast<DType>(get<std::uint8_t>(bytes, kDType)));
  for (std::size_t i = 0; i < Dims::kMax; ++i) {
    const auto extent = get<std::uint64_t>(bytes, kDims + 8 * i);
    if (extent > (i < count ? most : 0)) return std::nullopt;
    if (!tensor || i >= count) continue;
    if (__builtin_mul_overflow(product, extent, &product) || product > kMost) return std::nullopt;
  }
  return product;
}

/// Shape and bytes. An absent tensor and an empty list have neither.
Refusal check_size(std::span<const std::byte> bytes,
                   std::size_t part,
                   std::uint64_t largest) noexcept {
  const auto count = get<std::uint8_t>(bytes, kDimCount);
  const bool tensor = carries_tensor(static_cast<FrameKind>(get<std::uint8_t>(bytes, kKind)));
  const auto shape = bytes_of_shape(bytes, tensor);
  if (!shape) return Refusal::Shape;
  const auto claimed = get<std::uint64_t>(bytes, kPayloadBytes);
  const auto tensors = get<std::uint16_t>(bytes, kTensorCount);
  const auto index = get<std::uint16_t>(bytes, kTensorIndex);
  const bool absent = (get<std::uint8_t>(bytes, kFlags) & kAbsentFlag) != 0;
  if (tensor && !absent && tensors == 0) return Refusal::Shape;
  if (tensor && index >= std::max<std::uint16_t>(tensors, 1)) return Refusal::Shape;
  if (tensor && absent && (count != 0 || claimed != 0)) return Refusal::Shape;
  const int lead = get<std::uint8_t>(bytes, kLead);
  if (lead != 0 && (!tensor || absent)) return Refusal::Shape;
  if (claimed > largest || padded_bytes(lead, claimed) != part) return Refusal::Size;
  if (tensor && !absent && claimed != *shape) return Refusal::Size;
  return Refusal::None;
}

Direction direction_of(FrameKind kind) noexcept {
  if (kind == FrameKind::Forward) return Direction::Forward;
  return kind == FrameKind::Backward ? Direction::Backward : Direction::Collective;
}

void read(std::span<const std::byte> bytes, FrameHeader& out) noexcept {
  out.kind = static_cast<FrameKind>(get<std::uint8_t>(bytes, kKind));
  out.job = get<std::uint64_t>(bytes, kJob);
  out.epoch = get<std::uint32_t>(bytes, kEpoch);
  out.source = Rank{get<std::uint16_t>(bytes, kSource)};
  out.destination = Rank{get<std::uint16_t>(bytes, kDestination)};
  out.sequence = get<std::uint64_t>(bytes, kSequence);
  out.tag.step = get<std::uint64_t>(bytes, kStep);
  out.tag.direction = direction_of(out.kind);
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
  std::array<std::int64_t, Dims::kMax> extents{};
  const auto count = get<std::uint8_t>(bytes, kDimCount);
  for (std::size_t i = 0; i < count; ++i) extents[i] = get<std::int64_t>(bytes, kDims + 8 * i);
  out.dims = Dims(std::span<const std::int64_t>(extents.data(), count));
  out.payload_bytes = get<std::uint64_t>(bytes, kPayloadBytes);
  out.payload_hash = get<std::uint64_t>(bytes, kPayloadHash);
  out.lead = get<std::uint8_t>(bytes, kLead);
  out.wished_lead = get<std::uint8_t>(bytes, kWishedLead);
  out.acknowledged = get<std::uint64_t>(bytes, kAcknowledged);
  for (std::size_t i = 0; i < out.taken.size(); ++i)
    out.taken[i] = get<std::uint64_t>(bytes, kTaken + 8 * i);
}

}  // namespace

FrameBytes encode(const FrameHeader& header) {
  FrameBytes bytes{};
  put(bytes, kMagic, kFrameMagic);
  put(bytes, kVersion, kProtocolVersion);
  put(bytes, kSize, static_cast<std::uint16_t>(kHeaderBytes));
  put(bytes, kJob, header.job);
  put(bytes, kStep, header.tag.step);
  put(bytes, kSequence, header.sequence);
  for (std::size_t i = 0; i < header.dims.size(); ++i) put(bytes, kDims + 8 * i, header.dims[i]);
  put(bytes, kPayloadBytes, header.payload_bytes);
  put(bytes, kPayloadHash, header.payload_hash);
  put(bytes, kEpoch, header.epoch);
  require(header.tag.micro_batch.value >= 0, [&] {
    return "micro-batch " + std::to_string(header.tag.micro_batch.value) + " is below 0";
  });
  put(bytes, kMicroBatch, header.tag.micro_batch.value);
  put(bytes, kSource, narrow(header.source.value, "source rank"));
  put(bytes, kDestination, narrow(header.destination.value, "destination rank"));
  put(bytes, kStage, narrow(header.tag.stage.value, "stage"));
  put(bytes, kTensorIndex, narrow(header.tensor_index, "tensor index"));
  put(bytes, kKind, static_cast<std::uint8_t>(header.kind));
  put(bytes, kDType, static_cast<std::uint8_t>(header.dtype));
  put(bytes, kDimCount, static_cast<std::uint8_t>(header.dims.size()));
  put(bytes,
      kFlags,
      static_cast<std::uint8_t>((header.absent ? kAbsentFlag : 0) |
                                (header.hashed ? kHashedFlag : 0)));
  put(bytes, kSlice, narrow(header.tag.slice.value, "slice"));
  put(bytes, kReplica, narrow<std::uint8_t>(header.tag.replica.value, "replica"));
  put(bytes, kEdge, header.tag.edge);
  put(bytes, kTensorCount, narrow(header.tensor_count, "tensor count"));
  put(bytes, kLead, lead_of(header.lead));
  put(bytes, kWishedLead, lead_of(header.wished_lead));
  put(bytes, kAcknowledged, header.acknowledged);
  for (std::size_t i = 0; i < header.taken.size(); ++i) put(bytes, kTaken + 8 * i, header.taken[i]);
  repair_checksum(bytes);
  return bytes;
}

Refusal decode(std::span<const std::byte> header,
               std::size_t payload_part_bytes,
               const FrameExpectation& expected,
               FrameHeader& out) noexcept {
  if (const Refusal wrong = check_envelope(header); wrong != Refusal::None) return wrong;
  if (const Refusal wrong = check_edge(header, expected); wrong != Refusal::None) return wrong;
  const Refusal wrong = check_size(header, payload_part_bytes, expected.largest_payload);
  if (wrong == Refusal::None) read(header, out);
  return wrong;
}

std::optional<std::uint16_t> other_version(std::span<const std::byte> header) noexcept {
  if (header.size() < kSize || get<std::uint32_t>(header, kMagic) != kFrameMagic)
    return std::nullopt;
  const auto version = get<std::uint16_t>(header, kVersion);
  return version == kProtocolVersion ? std::nullopt : std::optional(version);
}

void repair_checksum(std::span<std::byte, kHeaderBytes> header) noexcept {
  const std::uint32_t sum = checksum(header);
  for (std::size_t i = 0; i < 4; ++i)
    header[kChecksum + i] = static_cast<std::byte>((sum >> (8 * i)) & 0xFFU);
}

std::uint64_t payload_hash(std::span<const std::byte> payload) noexcept {
  return XXH3_64bits(payload.data(), payload.size());
}

const char* name_of(Refusal refusal) {
  switch (refusal) {
    case Refusal::None:
      return "none";
    case Refusal::Stranger:
      return "stranger";
    case Refusal::PartCount:
      return "part count";
    case Refusal::HeaderSize:
      return "header size";
    case Refusal::Magic:
      return "magic";
    case Refusal::Version:
      return "version";
    case Refusal::Checksum:
      return "header checksum";
    case Refusal::Enumeration:
      return "enumeration";
    case Refusal::Reserved:
      return "reserved bits";
    case Refusal::Job:
      return "job";
    case Refusal::Epoch:
      return "epoch";
    case Refusal::Edge:
      return "edge";
    case Refusal::Shape:
      return "shape";
    case Refusal::Size:
      return "size";
    case Refusal::Duplicate:
      return "duplicate";
    case Refusal::Gap:
      return "gap";
    case Refusal::State:
      return "state";
    case Refusal::Payload:
      return "payload hash";
  }
  return "?";
}

const char* name_of(FrameKind kind) {
  constexpr std::array kNames = {"?",
                                 "forward",
                                 "backward",
                                 "collective",
                                 "probe",
                                 "ack",
                                 "nack",
                                 "hello",
                                 "welcome",
                                 "refused",
                                 "progress",
                                 "abort",
                                 "bye",
                                 "bye-ack"};
  return kNames[static_cast<std::size_t>(kind)];
}

}  // namespace millrace
