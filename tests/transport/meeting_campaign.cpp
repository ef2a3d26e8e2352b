#include "transport/meeting_campaign.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "millrace/core/error.hpp"
#include "millrace/core/random.hpp"
#include "millrace/transport/listener.hpp"
#include "transport/rendezvous/hello.hpp"
#include "transport/wire/control.hpp"

namespace millrace {

namespace {

using Spoken = std::span<const std::uint8_t>;

constexpr std::uint64_t kMeetingJob = 7;
constexpr int kMeetingWorld = 3;
constexpr std::uint64_t kLongestAnswer = 1U << 20U;
const char* const kOwnAddress = "mine";

/// Notes one by one, as long as the input lasts.
class Notes {
 public:
  Notes(Spoken input, Rank self) : input_(input), self_(self) {}

  RendezvousMessage next() {
    if (input_.size() < 4) throw TransportError("no rank comes any more");
    const Spoken words = input_.first(4);
    const Spoken text = input_.subspan(4, std::min<std::size_t>(words[3], input_.size() - 4));
    input_ = input_.subspan(4 + text.size());
    const Rank from{self_ == Rank{0} ? words[0] % 4 : 0};
    Envelope envelope;
    envelope.job = kMeetingJob;
    envelope.source = from;
    envelope.destination = self_;
    ControlBytes bytes = encode(
        envelope,
        control(words[1] % 6, from, {reinterpret_cast<const char*>(text.data()), text.size()}));
    if (words[2] != 0) {
      bytes.header[words[2] % kHeaderBytes] ^= static_cast<std::byte>(words[1]);
      if (words[1] % 2 == 0) repair_checksum(bytes.header);
    }
    const std::size_t whole = words[1] / 6 == 40 ? words[2] : kHeaderBytes;
    return {from,
            {bytes.header.begin(),
             bytes.header.begin() + static_cast<std::ptrdiff_t>(std::min(whole, kHeaderBytes))},
            std::move(bytes.text)};
  }

 private:
  static Control control(int kind, Rank from, const std::string& text) {
    const HelloFields honest = {{"protocol", std::to_string(kProtocolVersion)},
                                {"world", std::to_string(kMeetingWorld)},
                                {"plan", "abc"}};
    switch (kind) {
      case 0:
        return Hello{hello_text(honest, {"rank" + std::to_string(from.value)})};
      case 1:
        return Hello{hello_text(honest, {}) + text};
      case 2:
        return Hello{text};
      case 3:
        return Missing{text};
      case 4:
        return Refused{text};
      default:
        return Welcome{text};
    }
  }

  Spoken input_;
  const Rank self_;
};

/// What the rendezvous did, and what it sent to each rank.
struct Record {
  std::vector<PeerAddress> opened;
  std::map<int, Control> reported;
  std::string wrong;
};

class HostileChannel final : public RendezvousChannel {
 public:
  HostileChannel(Notes& notes, Record& record, Rank self)
      : notes_(notes), record_(record), self_(self) {}

  void send(Rank to, std::span<const std::byte> header, std::string_view text) override {
    Envelope envelope;
    Control control;
    const FrameExpectation expected{kMeetingJob, 0, self_, to, kLongestAnswer};
    if (decode(header, std::as_bytes(std::span(text)), expected, envelope, control) !=
        Refusal::None)
      record_.wrong = "the rendezvous sent what no rank understands";
    record_.reported.insert_or_assign(to.value, std::move(control));
  }

  std::optional<RendezvousMessage> receive(std::chrono::milliseconds /*longest*/) override {
    return notes_.next();
  }

 private:
  Notes& notes_;
  Record& record_;
  const Rank self_;
};

class RecordingListener final : public Listener {
 public:
  RecordingListener(Spoken input, Record& record)
      : record_(record),
        member_{Rank{input.empty() ? 0 : input.front() % 2}, kMeetingWorld, kMeetingJob, 0},
        notes_(input.subspan(std::min<std::size_t>(input.size(), 1)), member_.rank) {}

  [[nodiscard]] const Membership& member() const override { return member_; }
  [[nodiscard]] PeerAddress address() const override { return {kOwnAddress}; }
  std::unique_ptr<RendezvousChannel> rendezvous_channel(const std::string& /*url*/,
                                                        std::size_t /*longest*/) override {
    return std::make_unique<HostileChannel>(notes_, record_, member_.rank);
  }
  std::unique_ptr<Endpoint> open(const std::vector<PeerAddress>& addresses) override {
    record_.opened = addresses;
    return nullptr;
  }

 private:
  Record& record_;
  Membership member_;
  Notes notes_;
};

/// Rank 0 has sent all ranks the addresses that it opens.
std::string fault_of_host(const Record& record) {
  if (record.opened.size() != kMeetingWorld || record.opened.front().text != kOwnAddress)
    return "rank 0 opened other addresses than one for each rank";
  for (int rank = 1; rank < kMeetingWorld; ++rank) {
    const auto reported = record.reported.find(rank);
    const auto* welcome =
        reported == record.reported.end() ? nullptr : std::get_if<Welcome>(&reported->second);
    if (welcome == nullptr) return "a rank that was met was not welcomed";
    if (welcome_addresses(welcome->text) != record.opened) return "a rank got other addresses";
  }
  return {};
}

}  // namespace

MeetingResult run_meeting_input(std::span<const std::uint8_t> input) {
  MeetingResult result;
  Record record;
  RecordingListener listener(input, record);
  const bool host = listener.member().rank == Rank{0};
  try {
    static_cast<void>(meet({.url = "here", .fields = {{"plan", "abc"}}}, std::move(listener)));
    result.met = 1;
    if (host) result.wrong = fault_of_host(record);
  } catch (const Mismatch& error) {
    result.differed = 1;
    // Rank 1 gets what rank 0 sent.
    if (host && std::string(error.what()).find("differs: rank 0 has") == std::string::npos)
      result.wrong = "a difference was not named";
  } catch (const TransportError&) {
    result.ended = 1;
  }
  if (!record.wrong.empty()) result.wrong = record.wrong;
  return result;
}

MeetingResult run_meeting_campaign(std::uint64_t seed, int inputs) {
  MeetingResult all;
  std::array<std::uint8_t, 120> input{};
  for (int i = 0; i < inputs && all.wrong.empty(); ++i) {
    const RandomKey key{.seed = seed, .step = static_cast<std::uint32_t>(i)};
    for (std::size_t at = 0; at < input.size(); ++at)
      input[at] = static_cast<std::uint8_t>(random_below(key, static_cast<std::uint32_t>(at), 256));
    for (std::size_t at = 1; at + 4 <= input.size(); at += 4) {
      input[at + 3] = 0;  // honest texts
      if (i % 2 == 0) input[at + 1] = input[at + 2] = 0;
    }
    const MeetingResult one = run_meeting_input(input);
    all.met += one.met;
    all.differed += one.differed;
    all.ended += one.ended;
    all.wrong = one.wrong;
  }
  return all;
}

}  // namespace millrace
