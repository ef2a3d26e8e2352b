#include "transport/frame_campaign.hpp"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "millrace/core/random.hpp"

namespace millrace {

namespace {

constexpr FrameExpectation kExpectation{42, 3, Rank{1}, Rank{0}, 4096};

template <class T>
T field(std::span<const std::byte> bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

/// The honest sender: messages of 0 to 3 small tensors, step after step.
class HonestSender {
 public:
  [[nodiscard]] DataHeader next(std::uint64_t sequence) const {
    DataHeader header;
    header.job = kExpectation.job;
    header.epoch = kExpectation.epoch;
    header.source = kExpectation.source;
    header.destination = kExpectation.destination;
    header.sequence = sequence;
    header.tag.step = message_ / 8;
    header.tag.direction = static_cast<Direction>(message_ % 3);
    header.tag.stage = Stage{static_cast<std::int32_t>(message_ % 5)};
    header.tag.micro_batch = MicroBatch{static_cast<std::int32_t>(message_ % 8)};
    header.tensor_count = static_cast<int>(message_ % 4);
    if (tensor_ != 0) {  // a mutant that was taken may have opened another message than ours
      header.tag = open_.tag;
      header.tensor_count = open_.tensor_count;
    }
    header.tensor_index = tensor_;
    header.absent =
        header.tensor_count == 0 || (message_ + static_cast<unsigned>(tensor_)) % 7 == 0;
    header.dtype = DType::F32;
    if (!header.absent) header.dims = Dims{static_cast<std::int64_t>(message_ % 3), 4};
    header.payload_bytes = header.absent ? 0 : 16 * (message_ % 3);
    header.hashed = message_ % 2 == 0;
    header.lead = header.absent ? 0 : static_cast<int>(message_ % 5 * 8);
    header.wished_lead = static_cast<int>(message_ % 64);
    header.acknowledged = message_;
    return header;
  }

  void taken(const DataHeader& header) {
    tensor_ = header.tensor_index + 1 < header.tensor_count ? header.tensor_index + 1 : 0;
    open_ = header;
    if (tensor_ == 0) ++message_;
  }

 private:
  std::uint64_t message_ = 0;
  int tensor_ = 0;
  DataHeader open_;
};

/// One receiver, its model, and an honest sender whose frames are mutated on the way.
class Duel {
 public:
  /// Sends the next legal frame with `mutate(header bytes, payload)` applied.
  template <class Mutate>
  Refusal send(const Mutate& mutate) {
    DataHeader header = sender_.next(judge_.expected());
    std::vector<std::byte> payload(padded_bytes(header.lead, header.payload_bytes),
                                   std::byte{0x5A});
    if (header.hashed) header.payload_hash = payload_hash(tensor_bytes(header, payload));
    const FrameBytes encoded = encode(header);
    std::vector<std::byte> bytes(encoded.begin(), encoded.end());
    mutate(bytes, payload);

    DataHeader taken;
    const Refusal refusal = judge_.take(bytes, payload, taken);
    const bool accepted = refusal == Refusal::None;
    const bool model = model_.takes(bytes, payload);
    if (accepted != model || judge_.expected() != model_.next()) {
      disagreement_ = std::string("receiver says ") + name_of(refusal) +
                      (model ? ", the model takes the frame" : ", the model refuses the frame");
    }
    if (accepted) sender_.taken(taken);
    return refusal;
  }

  [[nodiscard]] const std::string& disagreement() const { return disagreement_; }

 private:
  FrameJudge judge_{kExpectation};
  NaiveReceiver model_{kExpectation};
  HonestSender sender_;
  std::string disagreement_;
};

void repair(std::vector<std::byte>& bytes) {
  if (bytes.size() == kHeaderBytes)
    repair_checksum(std::span<std::byte, kHeaderBytes>(bytes.data(), kHeaderBytes));
}

/// A mutation drawn from four random words.
void mutate(std::array<std::uint32_t, 4> word,
            std::vector<std::byte>& bytes,
            std::vector<std::byte>& payload) {
  const std::size_t at = word[1] % kHeaderBytes;
  switch (word[0] % 8) {
    case 0:  // another byte
      bytes[at] = static_cast<std::byte>(word[2]);
      break;
    case 1:  // a small number in a small field
      bytes[at] = static_cast<std::byte>(word[2] % 8);
      break;
    case 2:  // one bit
      bytes[at] ^= static_cast<std::byte>(1U << (word[2] % 8));
      break;
    case 3:  // a huge extent
      std::memcpy(bytes.data() + 74 + 8 * (word[1] % 6), &word[1], 8);
      break;
    case 4:  // a sequence number nearby
      bytes[122] = static_cast<std::byte>(std::to_integer<unsigned>(bytes[122]) + word[2] % 5 - 2);
      break;
    case 5:  // payload of another size
      payload.resize(word[1] % 8 == 0 ? 5000 : word[1] % 64);
      break;
    case 6:  // payload bit
      if (!payload.empty()) payload[word[1] % payload.size()] ^= std::byte{1};
      break;
    case 7:  // cut
      if (word[2] % 4 == 0) bytes.resize(at);
      break;
  }
  if (word[3] % 2 == 0) repair(bytes);
}

using Bytes = std::span<const std::byte>;

bool checksum_holds(Bytes header) {
  FrameBytes copy;
  std::memcpy(copy.data(), header.data(), copy.size());
  repair_checksum(copy);
  return std::memcmp(copy.data(), header.data(), copy.size()) == 0;
}

bool all(std::initializer_list<bool> claims) {
  return std::all_of(claims.begin(), claims.end(), [](bool claim) { return claim; });
}

bool well_formed(Bytes header) {
  const auto kind = field<std::uint8_t>(header, 72);
  return all({field<std::uint32_t>(header, 0) == 0x4C494D52,
              field<std::uint16_t>(header, 4) == 5,
              field<std::uint16_t>(header, 6) == 160,
              field<std::uint8_t>(header, 155) < 64,
              field<std::uint8_t>(header, 73) < 64,
              field<std::int32_t>(header, 138) >= 0,
              kind >= 1 && kind <= 3,
              field<std::uint8_t>(header, 152) <= 6,
              field<std::uint8_t>(header, 153) <= 6,
              field<std::uint8_t>(header, 154) <= 3});
}

bool of_this_link(Bytes header, const FrameExpectation& expected) {
  return all({field<std::uint64_t>(header, 8) == expected.job,
              field<std::uint32_t>(header, 16) == expected.epoch,
              field<std::uint16_t>(header, 20) == expected.source.value,
              field<std::uint16_t>(header, 22) == expected.destination.value});
}

/// Where the tensor begins and what comes after it, counted out byte by byte: with a lead, parts
/// end 48 bytes before a multiple of 64.
bool part_holds(Bytes header, std::size_t tensor, std::size_t part) {
  const std::size_t lead = field<std::uint8_t>(header, 155);
  std::size_t end = lead + tensor;
  while (lead != 0 && end % 64 != 16) ++end;
  return end == part;
}

/// Whether the shape is one, and the payload has its bytes: none of a tensor that is absent.
bool size_holds(Bytes header, std::size_t payload) {
  __extension__ using Wide = unsigned __int128;
  const auto count = field<std::uint8_t>(header, 153);
  Wide bytes = size_of(static_cast<DType>(field<std::uint8_t>(header, 152)));
  for (std::size_t i = 0; i < 6; ++i) {
    const auto extent = field<std::uint64_t>(header, 74 + 8 * i);
    if (i >= count && extent != 0) return false;
    if (i < count && extent > (std::uint64_t{1} << 40U)) return false;
    if (i < count) bytes *= extent;
    if (bytes >> 63U != 0) return false;
  }
  const auto flags = field<std::uint8_t>(header, 154);
  const bool absent = (flags & 1U) != 0;
  if (!absent && field<std::uint16_t>(header, 148) == 0) return false;
  const bool leads = field<std::uint8_t>(header, 155) != 0;
  return absent ? count == 0 && payload == 0 && !leads : bytes == payload;
}

/// Step, micro-batch, stage, slice, tensor count, replica, edge and kind: equal within a message.
std::array<std::byte, 32> tag_of(Bytes header) {
  std::array<std::byte, 32> tag{};
  std::memcpy(tag.data(), header.data() + 130, 16);
  std::memcpy(tag.data() + 16, header.data() + 148, 4);
  tag[20] = header[72];
  return tag;
}

}  // namespace

bool NaiveReceiver::takes(Bytes header, Bytes payload) {
  if (header.size() != 160 || !checksum_holds(header)) return false;
  if (!well_formed(header) || !of_this_link(header, expected_)) return false;
  if (field<std::uint64_t>(header, 122) != next_) return false;
  const auto bytes = field<std::uint64_t>(header, 56);
  if (bytes > expected_.largest_payload || !size_holds(header, bytes)) return false;
  if (!part_holds(header, bytes, payload.size())) return false;

  const auto index = field<std::uint16_t>(header, 146);
  const auto tensors = field<std::uint16_t>(header, 148);
  if (index != tensor_ || (index != 0 && index >= tensors)) return false;
  const auto tag = tag_of(header);
  if (index != 0 && tag != open_tag_) return false;
  const bool hashed = (field<std::uint8_t>(header, 154) & 2U) != 0;
  const Bytes tensor = payload.subspan(field<std::uint8_t>(header, 155), bytes);
  if (hashed && field<std::uint64_t>(header, 64) != payload_hash(tensor)) return false;

  open_tag_ = tag;
  ++next_;
  tensor_ = index + 1 < tensors ? index + 1 : 0;
  return true;
}

CampaignResult run_frame_campaign(std::uint64_t seed, std::uint64_t frames) {
  CampaignResult result;
  Duel duel;
  const RandomKey key{.seed = seed, .purpose = Purpose::Test};
  for (std::uint64_t i = 0; i < frames; ++i) {
    const auto word = random_block(key, static_cast<std::uint32_t>(i));
    const Refusal refusal = duel.send([&](auto& bytes, auto& payload) {
      if (i % 16 != 0) mutate(word, bytes, payload);
      if (word[3] % 64 == 1)
        mutate(random_block(key, ~static_cast<std::uint32_t>(i)), bytes, payload);
    });
    if (refusal == Refusal::None) ++result.accepted;
    ++result.refused[static_cast<std::size_t>(refusal)];
    if (duel.disagreement().empty()) continue;
    ++result.disagreements;
    result.first = "frame " + std::to_string(i) + ": " + duel.disagreement();
    return result;
  }
  return result;
}

std::string run_frame_input(std::span<const std::uint8_t> input) {
  Duel duel;
  constexpr std::size_t kStep = 4;  // where, what, how, repaired or not
  for (std::size_t at = 0; at + kStep <= input.size(); at += kStep) {
    const auto* step = input.data() + at;
    duel.send([&](std::vector<std::byte>& bytes, std::vector<std::byte>& payload) {
      if ((step[3] & 2U) != 0) {
        mutate({step[2], step[0], step[1], step[3]}, bytes, payload);
        return;
      }
      bytes[step[0] % kHeaderBytes] = static_cast<std::byte>(step[1]);
      if ((step[3] & 1U) == 0) repair(bytes);
    });
    if (!duel.disagreement().empty()) return duel.disagreement();
  }
  return {};
}

}  // namespace millrace
