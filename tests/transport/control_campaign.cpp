#include "transport/control_campaign.hpp"

#include <algorithm>
#include <exception>
#include <limits>

#include "millrace/core/random.hpp"

namespace millrace {

namespace {

constexpr std::uint64_t kLargest = 64;

/// Honest numbers, a third of them at the ends of what a field holds.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : key_{.seed = seed, .purpose = Purpose::Test} {}

  template <class T>
  T from(T least, T most) {
    const std::uint32_t word = next();
    if (word % 6 == 0) return least;
    if (word % 6 == 1) return most;
    return static_cast<T>(static_cast<std::uint64_t>(least) + word % 5);
  }

  std::uint32_t next() { return random_block(key_, drawn_++)[0]; }

 private:
  RandomKey key_;
  std::uint32_t drawn_ = 0;
};

Progress honest_progress(Numbers& numbers) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  Progress progress;
  progress.age = std::chrono::nanoseconds(numbers.from<std::int64_t>(0, std::int64_t{1} << 60));
  Activity& activity = progress.activity;
  activity.doing = static_cast<Doing>(numbers.from(0, 4));
  activity.of_unit = numbers.next() % 2 == 0;
  activity.sent = numbers.next() % 2 == 0;
  activity.peer = Rank{numbers.from(-1, kMost)};
  std::string("SEND_F of a rank").copy(activity.what.data(), numbers.next() % 17);
  activity.count = numbers.from<std::uint64_t>(0, ~std::uint64_t{0});
  activity.longest = std::chrono::nanoseconds(numbers.from<std::int64_t>(0, std::int64_t{1} << 55));
  activity.usual = std::chrono::nanoseconds(numbers.from<std::int64_t>(0, std::int64_t{1} << 55));
  activity.tag = {numbers.from<std::uint64_t>(0, ~std::uint64_t{0}),
                  static_cast<Direction>(numbers.from(0, 2) % 3),
                  Replica{numbers.from(0, 255)},
                  Stage{numbers.from(0, 65535)},
                  MicroBatch{numbers.from(0, kMost)},
                  Slice{numbers.from(0, 65535)},
                  static_cast<std::uint8_t>(numbers.from(0, 255))};
  return progress;
}

void set(std::span<std::byte> bytes, std::size_t at, std::uint64_t value) {
  for (std::size_t i = 0; i < 8; ++i) bytes[at + i] = static_cast<std::byte>(value >> (8 * i));
}

/// As who changes a frame on purpose would leave it.
void repair(ControlBytes& bytes) {
  set(bytes.header, 56, bytes.text.size());
  set(bytes.header, 64, payload_hash(std::as_bytes(std::span(bytes.text))));
  repair_checksum(bytes.header);
}

void mutate(ControlBytes& bytes, Numbers& numbers) {
  const std::size_t own = kEnvelopeBytes + numbers.next() % (kChecksumAt - kEnvelopeBytes);
  switch (numbers.next() % 6) {
    case 0:  // a bit of the kind's own part
      bytes.header[own] ^= static_cast<std::byte>(1U << (numbers.next() % 8));
      break;
    case 1:  // a byte near its beginning, where the fields are
      bytes.header[kEnvelopeBytes + numbers.next() % 40] = static_cast<std::byte>(numbers.next());
      break;
    case 2:  // any bit
      bytes.header[numbers.next() % kHeaderBytes] ^=
          static_cast<std::byte>(1U << (numbers.next() % 8));
      break;
    case 3:  // another kind's fields
      bytes.header[72] = static_cast<std::byte>(numbers.next() % 16);
      break;
    case 4:  // a longer text, maybe too long, maybe where none belongs
      bytes.text.append(numbers.next() % 80, 'x');
      break;
    case 5:  // a text changed on the way, after its hash
      if (!bytes.text.empty()) bytes.text.front() ^= 1;
      repair_checksum(bytes.header);
      return;
  }
  if (numbers.next() % 8 != 0) repair(bytes);
}

}  // namespace

FrameExpectation expectation_of_controls() {
  return {42, 3, Rank{1}, Rank{0}, kLargest};
}

Envelope envelope_of_controls() {
  Envelope envelope;
  envelope.job = 42;
  envelope.epoch = 3;
  envelope.source = Rank{1};
  envelope.acknowledged = 77;
  envelope.taken = {1, 2, 3};
  envelope.wished_lead = 8;
  return envelope;
}

std::vector<Control> honest_controls(std::uint64_t seed) {
  Numbers numbers(seed);
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  const auto count = [&] { return numbers.from<std::uint64_t>(0, ~std::uint64_t{0}); };
  const auto text = [&] { return std::string(numbers.from<std::size_t>(0, 64), 't'); };
  return {Probe{count(), count(), numbers.from(0, kMost)},
          Ack{count()},
          Nack{count(), numbers.from(1, kMost)},
          honest_progress(numbers),
          Abort{static_cast<FailureCause>(numbers.from(0, 3) % 4), text()},
          Bye{},
          ByeAck{},
          Hello{text()},
          Missing{text()},
          Welcome{text()},
          Refused{text()}};
}

std::string fault_of(std::span<const std::byte> header,
                     std::span<const std::byte> text,
                     ControlCampaign& campaign) {
  Envelope envelope;
  Control control;
  const Refusal refusal = decode(header, text, expectation_of_controls(), envelope, control);
  ++campaign.refused[static_cast<std::size_t>(refusal)];
  if (refusal != Refusal::None) return {};
  ++campaign.accepted;
  const std::string kind = "a frame of kind " + std::to_string(std::to_integer<int>(header[72]));
  if (text.size() > kLargest) return kind + " with a text above the agreed size was taken";
  try {
    const ControlBytes again = encode(envelope, control);
    if (!std::ranges::equal(again.header, header))
      return kind + " was taken with something in its header that was not read";
    if (!std::ranges::equal(std::as_bytes(std::span(again.text)), text))
      return kind + " was taken with another text";
  } catch (const std::exception& error) {
    return kind + " was taken that no rank could send: " + error.what();
  }
  return {};
}

ControlCampaign run_control_campaign(std::uint64_t seed, std::uint64_t frames) {
  ControlCampaign campaign;
  Numbers numbers(seed);
  while (frames > 0 && campaign.fault.empty())
    for (const Control& control : honest_controls(seed + frames)) {
      ControlBytes bytes = encode(envelope_of_controls(), control);
      if (frames % 16 != 0) mutate(bytes, numbers);
      campaign.fault = fault_of(bytes.header, std::as_bytes(std::span(bytes.text)), campaign);
      if (--frames == 0 || !campaign.fault.empty()) break;
    }
  return campaign;
}

std::string run_control_input(std::span<const std::uint8_t> input) {
  if (input.empty()) return {};
  const auto controls = honest_controls(input.front() / 16);
  ControlBytes bytes = encode(envelope_of_controls(), controls[input.front() % controls.size()]);
  for (std::size_t at = 1; at + 2 <= input.size(); at += 2) {
    if (input[at] < kHeaderBytes)
      bytes.header[input[at]] = static_cast<std::byte>(input[at + 1]);
    else
      bytes.text.resize(input[at + 1], 'x');
  }
  if (input.size() % 2 == 1) repair(bytes);
  ControlCampaign campaign;
  return fault_of(bytes.header, std::as_bytes(std::span(bytes.text)), campaign);
}

}  // namespace millrace
