#include "transport/ring_campaign.hpp"

#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "millrace/core/random.hpp"
#include "transport/shared_memory/ring.hpp"

namespace millrace {

namespace {

using namespace shared_memory;

constexpr std::array<std::size_t, 2> kSegments = {4096, 65'536};
const FrameExpectation kExpected{7, 1, Rank{0}, Rank{1}, 1 << 20};

class HostileRing {
 public:
  HostileRing() : reader_(*memory_, kExpected) {
    for (const std::size_t bytes : kSegments) {
      Region region = make_region(bytes, Sharing::Write);
      segments_.emplace_back(region.memory.data(), bytes);
      reader_.add(std::move(region.memory));
    }
    begin_entry();
  }

  void act(std::span<const std::uint8_t> words) {
    const int value = words[2] << 8 | words[3];
    switch (words[0] % 8) {
      case 0:
        memory_->published.store((std::uint64_t{words[1]} << 56U) + static_cast<unsigned>(value));
        return;
      case 1:
      case 2:
        return change(words[1], value, words[0] % 8 == 1);
      case 3:
      case 4:
      case 5:
        return publish();
      default:
        return read();
    }
  }

  void read() {
    try {
      while (result.wrong.empty()) {
        const auto entry = reader_.next();
        if (!entry) return;
        judge(reader_.read(*entry));
      }
    } catch (const TransportError&) {
      result.ended = true;
    }
  }

  RingResult result;

 private:
  /// A legal frame of the next number, in one of the segments.
  void begin_entry() {
    DataHeader header;
    header.job = kExpected.job;
    header.epoch = kExpected.epoch;
    header.destination = Rank{1};
    header.sequence = number_;
    header.tag.step = number_;
    header.tensor_count = 1;
    header.dims = {static_cast<std::int64_t>(64 * (number_ % 5))};
    header.payload_bytes = 64 * (number_ % 5);
    const auto slot = static_cast<std::uint32_t>(number_ % 60);
    entry_ = {encode(header), {slot * std::uint64_t{64}, header.payload_bytes, slot % 2, slot, 1}};
  }

  void change(std::size_t where, int value, bool repaired) {
    auto bytes = std::bit_cast<std::array<std::byte, sizeof(RingEntry)>>(entry_);
    where %= bytes.size() - 1;
    bytes[where] ^= static_cast<std::byte>(value >> 8);
    bytes[where + 1] ^= static_cast<std::byte>(value & 0xFF);
    entry_ = std::bit_cast<RingEntry>(bytes);
    if (repaired) repair_checksum(entry_.header);
  }

  void publish() {
    const auto words = std::bit_cast<std::array<std::uint64_t, kEntryWords>>(entry_);
    for (std::size_t i = 0; i < words.size(); ++i)
      memory_->entries[number_ % kRingEntries][i] = words[i];
    memory_->published.store(++number_);
    begin_entry();
  }

  void judge(const FrameReader::Frame& frame) {
    if (frame.refusal != Refusal::None) {
      ++result.refused;
      return;
    }
    ++result.taken;
    const DataHeader& header = frame.header;
    if (header.source != kExpected.source || header.job != kExpected.job)
      result.wrong = "a frame of another rank was taken";
    if (header.sequence != next_++) result.wrong = "a frame was taken out of its turn";
    if (frame.bytes.size() != header.payload_bytes) result.wrong = "sizes differ";
    const auto elements = static_cast<std::uint64_t>(header.dims.elements());
    if (!header.absent && elements * size_of(header.dtype) != frame.bytes.size())
      result.wrong = "a shape is not that of its bytes";
    if (!frame.bytes.empty() && !lies_inside(frame.bytes)) result.wrong = "bytes lie outside";
  }

  [[nodiscard]] bool lies_inside(std::span<const std::byte> bytes) const {
    for (const auto& [begin, size] : segments_)
      if (bytes.data() >= begin && bytes.size() <= size &&
          static_cast<std::size_t>(bytes.data() - begin) <= size - bytes.size())
        return reinterpret_cast<std::uintptr_t>(bytes.data()) % kAlignment == 0;
    return false;
  }

  std::unique_ptr<RingMemory> memory_ = std::make_unique<RingMemory>();
  FrameReader reader_;
  std::vector<std::pair<const std::byte*, std::size_t>> segments_;
  RingEntry entry_;
  std::uint64_t number_ = 0;  // of the entry to be written next
  std::uint64_t next_ = 0;    // of the frame to be taken next
};

}  // namespace

RingResult run_ring_input(std::span<const std::uint8_t> input) {
  HostileRing ring;
  for (std::size_t at = 0; at + 4 <= input.size() && !ring.result.ended; at += 4)
    ring.act(input.subspan(at, 4));
  if (!ring.result.ended) ring.read();
  return ring.result;
}

RingResult run_ring_campaign(std::uint64_t seed, int inputs) {
  RingResult all;
  std::array<std::uint8_t, 160> input{};
  for (int i = 0; i < inputs && all.wrong.empty(); ++i) {
    const RandomKey key{.seed = seed, .step = static_cast<std::uint32_t>(i)};
    for (std::size_t at = 0; at < input.size(); ++at)
      input[at] = static_cast<std::uint8_t>(random_below(key, static_cast<std::uint32_t>(at), 256));
    // Counters that are changed end all at once: in few inputs.
    for (std::size_t at = 0; at < input.size() && i % 4 != 0; at += 4)
      if (input[at] % 8 == 0) input[at] = 3;
    const RingResult one = run_ring_input(input);
    all.taken += one.taken;
    all.refused += one.refused;
    all.ended = all.ended || one.ended;
    all.wrong = one.wrong;
  }
  return all;
}

}  // namespace millrace
