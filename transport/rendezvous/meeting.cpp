// Hellos are repeated until answered, so nothing here depends on who starts first.
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <optional>
#include <utility>
#include <variant>

#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/listener.hpp"
#include "transport/rendezvous/claims.hpp"
#include "transport/rendezvous/hello.hpp"
#include "transport/wire/control.hpp"

namespace millrace {

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// The welcome of the largest world: some 130 bytes of address per rank.
constexpr std::uint64_t kLongestNote = 1U << 20U;
/// A turn of a loop that took longer than this was spent stopped.
constexpr auto kLongestTurn = 1s;
constexpr auto kHelloInterval = 200ms;
/// Hellos that rank 0 answers per interval; in a larger world each rank sends fewer.
constexpr int kHellosAtOnce = 16;
constexpr auto kTellInterval = 1s;
/// Once two ranks are known to differ, the others have this long to come and to learn of it.
constexpr auto kLastCall = 5s;
constexpr auto kLastChance = 400ms;
constexpr auto kListenInterval = 200ms;

struct Note {
  Rank from;
  Control control;
};

/// What the peers said, by rank; also of ranks that believe in a larger world.
using Hellos = std::map<int, HelloFields>;

class Meeting {
 public:
  Meeting(const RendezvousOptions& rendezvous, Listener& listener)
      : rendezvous_(rendezvous), listener_(listener), self_(listener.member()) {
    fields_ = {{"protocol", std::to_string(kProtocolVersion)},
               {"world", std::to_string(self_.world)}};
    fields_.insert(fields_.end(), rendezvous.fields.begin(), rendezvous.fields.end());
    hello_ = hello_text(fields_, listener.address());
  }

  std::unique_ptr<Endpoint> hold() {
    if (self_.world == 1) return listener_.open({listener_.address()});
    channel_ = listener_.rendezvous_channel(rendezvous_.url, kLongestNote);
    const auto addresses = is_host() ? host() : visit();
    channel_.reset();  // its descriptor is free before the endpoint takes its own
    return listener_.open(addresses);
  }

 private:
  [[nodiscard]] bool is_host() const { return self_.rank == Rank{0}; }

  std::vector<PeerAddress> host() {
    Hellos said;
    while (!missing(said).empty()) {
      Note note;
      const bool came = receive(note);
      check_failure_notice();
      tell_progress(1 + static_cast<int>(said.size()));
      claims_.settle(Clock::now());
      if (Clock::now() > deadline_) {
        if (!claims_.conflict().empty()) throw Mismatch(claims_.conflict());
        if (differs_) break;
        give_up(said);
      }
      const auto* hello = std::get_if<Hello>(&note.control);
      if (came && hello != nullptr) take(note.from, hello_fields(hello->text), said);
    }
    return answer(said);
  }

  void take(Rank from, HelloFields theirs, Hellos& said) {
    const bool differs = !difference(fields_, theirs, from).empty();
    if (!differs && from.value >= self_.world) return;  // a liar
    // Once ranks differ, that is what they get.
    const bool counts = differs || differs_ || claims_.heard(from, theirs, Clock::now());
    if (!claims_.conflict().empty()) return tell_conflict(from, said);
    const bool is_new = counts && !said.contains(from.value);
    // Of two that say to be the same rank the one who differs counts.
    if (is_new || differs || (counts && difference(fields_, said[from.value], from).empty()))
      said[from.value] = std::move(theirs);
    if (is_new && !differs_) deadline_ = Clock::now() + rendezvous_.join_timeout;
    if (differs && !std::exchange(differs_, true))
      deadline_ = std::min(deadline_, Clock::now() + kLastCall);
    send(from, Missing{missing_text(missing(said), claims_.question(from))});
  }

  /// All that have come learn of two processes with one rank at once, and those that come a moment
  /// later.
  void tell_conflict(Rank from, const Hellos& said) {
    const Refused refusal{claims_.conflict()};
    send(from, refusal);
    if (std::exchange(conflict_told_, true)) return;
    deadline_ = std::min(deadline_, Clock::now() + kLastChance);
    for (const auto& [rank, theirs] : said)
      if (rank != from.value) send(Rank{rank}, refusal);
  }

  void tell_progress(int came) {
    if (!rendezvous_.progress || Clock::now() < next_tell_) return;
    next_tell_ = Clock::now() + kTellInterval;
    rendezvous_.progress(came);
  }

  [[noreturn]] void give_up(const Hellos& said) {
    const std::string text = not_all_came(rendezvous_.url, missing(said), start_);
    for (const auto& [rank, theirs] : said) send(Rank{rank}, Abort{FailureCause::Hang, text});
    throw PeerHangs(text);
  }

  std::vector<PeerAddress> answer(const Hellos& said) {
    std::vector<PeerAddress> addresses = {listener_.address()};
    std::string refusal;
    for (const auto& [rank, theirs] : said) {
      if (refusal.empty()) refusal = difference(fields_, theirs, Rank{rank});
      addresses.push_back(hello_address(theirs));
    }
    const Control verdict =
        refusal.empty() ? Control(Welcome{welcome_text(addresses)}) : Control(Refused{refusal});
    for (const auto& [rank, theirs] : said) send(Rank{rank}, verdict);
    if (!refusal.empty()) throw Mismatch(refusal);
    return addresses;
  }

  std::vector<PeerAddress> visit() {
    Note note;
    const auto interval = kHelloInterval * std::max(1, self_.world / kHellosAtOnce);
    HostAnswers host(interval);
    auto turn = Clock::now();
    do {
      check_failure_notice();
      const auto took = Clock::now() - std::exchange(turn, Clock::now());
      if (took > kLongestTurn) host.suspended(took);
      if (Clock::now() > deadline_ || host.silent_for(rendezvous_.heartbeat_timeout))
        throw PeerHangs(host.complaint(rendezvous_.url, channel_->keyed()));
      if (Clock::now() < next_hello_) continue;
      next_hello_ = Clock::now() + interval;
      send(Rank{0}, Hello{hello_ + claimant_text(claimant_)});
    } while (!receive(note) || only_listens(host, note));
    if (const auto* abort = std::get_if<Abort>(&note.control)) throw PeerHangs(abort->text);
    if (const auto* refused = std::get_if<Refused>(&note.control)) throw Mismatch(refused->text);
    return welcome_addresses(std::get<Welcome>(note.control).text);
  }

  /// True unless the note decides the meeting: it may be a list of those who have not come, and
  /// another one than before extends the timeout.
  bool only_listens(HostAnswers& host, const Note& note) {
    const auto* missing = std::get_if<Missing>(&note.control);
    const auto now = Clock::now();
    if (missing != nullptr && host.heard(list_of(missing->text), now))
      deadline_ = now + rendezvous_.join_timeout;
    if (missing != nullptr) heed_question(question_of(missing->text), now);
    return !std::holds_alternative<Abort>(note.control) &&
           !std::holds_alternative<Refused>(note.control) &&
           !std::holds_alternative<Welcome>(note.control);
  }

  /// Rank 0 asks whether this process is still there; it answers at once.
  void heed_question(const std::string& question, Clock::time_point now) {
    if (question.empty() || std::exchange(claimant_.answers, question) == question) return;
    next_hello_ = now;
  }

  /// The others may have met already: then a welcome is on its way, and the endpoints find the same
  /// rank lost. Who left at once would be taken for the lost one.
  void check_failure_notice() {
    if (rendezvous_.failure_notice.empty()) return;
    std::ifstream file(rendezvous_.failure_notice);
    std::string message;
    if (!std::getline(file, message)) return;
    if (!last_chance_) last_chance_ = Clock::now() + kLastChance;
    if (is_host() || Clock::now() > *last_chance_)
      throw PeerLost("lost a rank before all had met: " + message);
  }

  void send(Rank to, const Control& control) {
    Envelope envelope;
    envelope.job = self_.job;
    envelope.epoch = self_.epoch;
    envelope.source = self_.rank;
    envelope.destination = to;
    const ControlBytes bytes = encode(envelope, control);
    channel_->send(to, bytes.header, bytes.text);
  }

  /// Waits for a well-formed note of this job; anything else is dropped. A header of another
  /// protocol version is understood as far as that: its version differs.
  bool receive(Note& note) {
    const auto bytes = channel_->receive(kListenInterval);
    if (!bytes || bytes->from == self_.rank) return false;
    note.from = bytes->from;
    if (const auto version = other_version(bytes->header)) {
      const HelloFields theirs = {{"protocol", std::to_string(*version)}};
      note.control = is_host() ? Control(Hello{hello_text(theirs, {})})
                               : Control(Refused{difference(theirs, fields_, self_.rank)});
      return true;
    }
    const FrameExpectation expected{self_.job, self_.epoch, note.from, self_.rank, kLongestNote};
    const auto text = std::as_bytes(std::span(bytes->text));
    Envelope ignored;
    return decode(bytes->header, text, expected, ignored, note.control) == Refusal::None;
  }

  std::string missing(const Hellos& said) const {
    std::string text;
    for (int i = 1; i < self_.world; ++i)
      if (!said.contains(i) || !claims_.question(Rank{i}).empty())
        text += " rank " + std::to_string(i);
    return text;
  }

  const RendezvousOptions& rendezvous_;
  Listener& listener_;
  const Membership self_;
  std::unique_ptr<RendezvousChannel> channel_;
  HelloFields fields_;
  std::string hello_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point deadline_ = start_ + rendezvous_.join_timeout;
  Clock::time_point next_tell_ = start_ + kTellInterval;
  Clock::time_point next_hello_ = start_;
  bool differs_ = false;
  Claims claims_;  // rank 0
  bool conflict_told_ = false;
  Claimant claimant_ = this_process();
  std::optional<Clock::time_point> last_chance_;  // for a welcome, once a rank is known to be lost
};

}  // namespace

std::unique_ptr<Endpoint> meet(const RendezvousOptions& rendezvous, Listener&& listener) {
  return Meeting(rendezvous, listener).hold();
}

}  // namespace millrace
