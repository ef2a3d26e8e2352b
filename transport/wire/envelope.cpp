// Checks run in ascending order of cost.
#include "transport/wire/envelope.hpp"

#include <algorithm>
#include <cstring>

#include "core/names.hpp"
#include "millrace/core/tensor.hpp"
#include "millrace/transport/listener.hpp"
#include "transport/wire/numbers.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace millrace {

namespace {

constexpr Names<Refusal, kRefusals> kNames = {"refusal",
                                              {{{"none", Refusal::None},
                                                {"unknown peer", Refusal::UnknownPeer},
                                                {"part count", Refusal::PartCount},
                                                {"header size", Refusal::HeaderSize},
                                                {"magic", Refusal::Magic},
                                                {"version", Refusal::Version},
                                                {"header checksum", Refusal::Checksum},
                                                {"enumeration", Refusal::Enumeration},
                                                {"reserved bits", Refusal::Reserved},
                                                {"job", Refusal::Job},
                                                {"epoch", Refusal::Epoch},
                                                {"edge", Refusal::Edge},
                                                {"shape", Refusal::Shape},
                                                {"bounds", Refusal::Bounds},
                                                {"size", Refusal::Size},
                                                {"duplicate", Refusal::Duplicate},
                                                {"gap", Refusal::Gap},
                                                {"state", Refusal::State},
                                                {"payload hash", Refusal::Payload}}}};

using wire::get;
using wire::narrow;
using wire::put;

// Offsets of the fields; see FrameBytes.
enum EnvelopeField : std::size_t {
  kMagic = 0,
  kVersion = 4,
  kSize = 6,
  kJob = 8,
  kEpoch = 16,
  kSource = 20,
  kDestination = 22,
  kAcknowledged = 24,
  kTaken = 32,
  kPayloadBytes = 56,
  kPayloadHash = 64,
  kKind = 72,
  kWishedLead = 73
};

std::uint32_t checksum(std::span<const std::byte> header) noexcept {
  return static_cast<std::uint32_t>(XXH3_64bits(header.data(), kChecksumAt));
}

}  // namespace

FrameBytes begin_frame(FrameKind kind, const Envelope& envelope, const Payload& payload) {
  FrameBytes bytes{};
  put(bytes, kMagic, kFrameMagic);
  put(bytes, kVersion, kProtocolVersion);
  put(bytes, kSize, static_cast<std::uint16_t>(kHeaderBytes));
  put(bytes, kJob, envelope.job);
  put(bytes, kEpoch, envelope.epoch);
  put(bytes, kSource, narrow(envelope.source.value, "source rank"));
  put(bytes, kDestination, narrow(envelope.destination.value, "destination rank"));
  put(bytes, kAcknowledged, envelope.acknowledged);
  for (std::size_t i = 0; i < envelope.taken.size(); ++i)
    put(bytes, kTaken + 8 * i, envelope.taken[i]);
  put(bytes, kPayloadBytes, payload.bytes);
  put(bytes, kPayloadHash, payload.hash);
  put(bytes, kKind, static_cast<std::uint8_t>(kind));
  require(envelope.wished_lead >= 0 && envelope.wished_lead < static_cast<int>(kAlignment),
          [&] { return "a lead is " + std::to_string(envelope.wished_lead) + ", but 0 to 63"; });
  put(bytes, kWishedLead, static_cast<std::uint8_t>(envelope.wished_lead));
  return bytes;
}

Refusal check_envelope(std::span<const std::byte> header) noexcept {
  if (header.size() != kHeaderBytes) return Refusal::HeaderSize;
  if (get<std::uint32_t>(header, kMagic) != kFrameMagic) return Refusal::Magic;
  if (get<std::uint16_t>(header, kVersion) != kProtocolVersion) return Refusal::Version;
  if (get<std::uint16_t>(header, kSize) != kHeaderBytes) return Refusal::HeaderSize;
  if (get<std::uint32_t>(header, kChecksumAt) != checksum(header)) return Refusal::Checksum;
  const auto kind = get<std::uint8_t>(header, kKind);
  if (kind < static_cast<std::uint8_t>(FrameKind::Forward) ||
      kind > static_cast<std::uint8_t>(FrameKind::Missing))
    return Refusal::Enumeration;
  return get<std::uint8_t>(header, kWishedLead) < kAlignment ? Refusal::None : Refusal::Reserved;
}

Refusal check_connection(std::span<const std::byte> header,
                         const FrameExpectation& expected) noexcept {
  if (get<std::uint64_t>(header, kJob) != expected.job) return Refusal::Job;
  if (get<std::uint32_t>(header, kEpoch) != expected.epoch) return Refusal::Epoch;
  if (get<std::uint16_t>(header, kSource) != expected.source.value ||
      get<std::uint16_t>(header, kDestination) != expected.destination.value)
    return Refusal::Edge;
  return Refusal::None;
}

Envelope envelope_of(std::span<const std::byte> header) noexcept {
  Envelope envelope;
  envelope.job = get<std::uint64_t>(header, kJob);
  envelope.epoch = get<std::uint32_t>(header, kEpoch);
  envelope.source = Rank{get<std::uint16_t>(header, kSource)};
  envelope.destination = Rank{get<std::uint16_t>(header, kDestination)};
  envelope.acknowledged = get<std::uint64_t>(header, kAcknowledged);
  for (std::size_t i = 0; i < envelope.taken.size(); ++i)
    envelope.taken[i] = get<std::uint64_t>(header, kTaken + 8 * i);
  envelope.wished_lead = get<std::uint8_t>(header, kWishedLead);
  return envelope;
}

Payload payload_of(std::span<const std::byte> header) noexcept {
  return {get<std::uint64_t>(header, kPayloadBytes), get<std::uint64_t>(header, kPayloadHash)};
}

std::optional<FrameKind> claimed_kind(std::span<const std::byte> header) noexcept {
  if (header.size() <= kKind) return std::nullopt;
  return static_cast<FrameKind>(get<std::uint8_t>(header, kKind));
}

std::optional<std::uint16_t> other_version(std::span<const std::byte> header) noexcept {
  if (header.size() < kSize || get<std::uint32_t>(header, kMagic) != kFrameMagic)
    return std::nullopt;
  const auto version = get<std::uint16_t>(header, kVersion);
  return version == kProtocolVersion ? std::nullopt : std::optional(version);
}

void repair_checksum(std::span<std::byte, kHeaderBytes> header) noexcept {
  put(header, kChecksumAt, checksum(header));
}

std::uint64_t payload_hash(std::span<const std::byte> payload) noexcept {
  return XXH3_64bits(payload.data(), payload.size());
}

std::uint64_t copy_hashed(std::span<const std::byte> payload, std::byte* to) noexcept {
  constexpr std::size_t kPart = std::size_t{16} << 10U;  // stays in the first cache
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  for (std::size_t done = 0; done < payload.size(); done += kPart) {
    const auto part = payload.subspan(done, std::min(kPart, payload.size() - done));
    std::memcpy(to + done, part.data(), part.size());
    XXH3_64bits_update(&state, part.data(), part.size());
  }
  return XXH3_64bits_digest(&state);
}

const char* name_of(Refusal refusal) {
  return kNames.of(refusal).data();
}

}  // namespace millrace
