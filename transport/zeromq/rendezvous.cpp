// Hellos are repeated until answered, so nothing here depends on who starts first.
#include "millrace/transport/rendezvous.hpp"

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <utility>
#include <variant>

#include "millrace/transport/failure.hpp"
#include "transport/rendezvous/hello.hpp"
#include "transport/wire/control.hpp"
#include "transport/zeromq/address.hpp"
#include "transport/zeromq/context.hpp"
#include "transport/zeromq/sockets.hpp"

namespace millrace {

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// The welcome of the largest world: some 130 bytes of addresses per rank.
constexpr std::uint64_t kLongestHello = 1U << 20U;
/// A turn of a loop that took longer than this was spent stopped.
constexpr auto kLongestTurn = 1s;
constexpr int kLastWordMs = 2000;
constexpr auto kHelloInterval = 200ms;
/// Rank 0 answers so many hellos per interval; in a larger world each says his more seldom.
constexpr int kHellosAtOnce = 16;
constexpr auto kTellInterval = 1s;
/// Once two ranks are known to differ, the others have this long to come and hear of it.
constexpr auto kLastCall = 5s;
constexpr auto kLastChance = 400ms;
constexpr int kMostRanks = 1 << 16;

struct Note {
  Rank from;
  Control control;
};

/// What the visitors said, by rank; also of ranks that believe in a larger world.
using Hellos = std::map<int, HelloFields>;

class Meeting {
 public:
  Meeting(const RendezvousOptions& rendezvous,
          const ZeroMqOptions& options,
          std::shared_ptr<ZeroMqContext> context)
      : rendezvous_(rendezvous),
        options_(options),
        context_(std::move(context)),
        listener_(options, context_),
        deadline_(start_ + rendezvous.patience) {
    fields_ = {{"protocol", std::to_string(kProtocolVersion)},
               {"world", std::to_string(options.world)}};
    fields_.insert(fields_.end(), rendezvous.fields.begin(), rendezvous.fields.end());
    options_.largest_payload = kLongestHello;
    static_cast<void>(hello_text(fields_, {}));  // refuses line breaks
    if (options.world == 1) return;
    place_ = zeromq::meeting_place(rendezvous.url);
    zeromq::check_reachable(place_, options);
    if (place_.ipc) options_.link = ZeroMqLink::Ipc;
  }

  std::unique_ptr<Endpoint> hold() {
    if (options_.world == 1) return listener_.open({listener_.address()});
    return listener_.open(options_.rank == Rank{0} ? host() : visit());
  }

 private:
  std::vector<PeerAddress> host() {
    zmq::context_t& network = context_->parts().context;
    const std::string domain = context_->parts().new_domain();
    context_->parts().admit(domain, options_.keys.public_keys);
    zmq::socket_t socket = zeromq::make_listener(network, options_, domain);
    socket.set(zmq::sockopt::linger, kLastWordMs);
    try {
      place_.ipc ? zeromq::bind_ipc(socket, place_.path)
                 : socket.bind(zeromq::address_to_bind(place_));
    } catch (const zmq::error_t& error) {
      throw TransportError("rank 0 cannot listen at " + rendezvous_.url + ": " + error.what());
    }
    const zeromq::SocketFile file = zeromq::file_of(place_.ipc ? rendezvous_.url : std::string());
    Hellos said;
    while (!missing(said).empty()) {
      Note note;
      const bool came = receive(socket, note);
      heed_obituary();
      tell_progress(1 + static_cast<int>(said.size()));
      if (Clock::now() > deadline_) {
        if (differs_) break;
        give_up(socket, said);
      }
      const auto* hello = std::get_if<Hello>(&note.control);
      if (!came || hello == nullptr) continue;
      HelloFields theirs = hello_fields(hello->text);
      const bool differs = !difference(fields_, theirs, note.from).empty();
      if (!differs && note.from.value >= options_.world) continue;  // a liar
      const bool is_new = said.insert_or_assign(note.from.value, std::move(theirs)).second;
      if (is_new && !differs_) deadline_ = Clock::now() + rendezvous_.patience;
      if (differs && !std::exchange(differs_, true))
        deadline_ = std::min(deadline_, Clock::now() + kLastCall);
      tell(socket, note.from, Missing{missing(said)});
    }
    return answer(socket, said);
  }

  void tell_progress(int came) {
    if (!rendezvous_.progress || Clock::now() < next_tell_) return;
    next_tell_ = Clock::now() + kTellInterval;
    rendezvous_.progress(came);
  }

  [[noreturn]] void give_up(zmq::socket_t& socket, const Hellos& said) {
    const std::string text = not_all_came(rendezvous_.url, missing(said), start_);
    for (const auto& [rank, theirs] : said)
      tell(socket, Rank{rank}, Abort{FailureCause::Hang, text});
    throw PeerHangs(text);
  }

  std::vector<PeerAddress> answer(zmq::socket_t& socket, const Hellos& said) {
    std::vector<PeerAddress> addresses = {listener_.address()};
    std::string refusal;
    for (const auto& [rank, theirs] : said) {
      if (refusal.empty()) refusal = difference(fields_, theirs, Rank{rank});
      addresses.push_back({hello_field(theirs, "@data"), hello_field(theirs, "@control")});
    }
    std::string table;
    for (const PeerAddress& address : addresses)
      table += address.data + "\n" + address.control + "\n";
    const Control verdict = refusal.empty() ? Control(Welcome{table}) : Control(Refused{refusal});
    for (const auto& [rank, theirs] : said) tell(socket, Rank{rank}, verdict);
    if (!refusal.empty()) throw Mismatch(refusal);
    return addresses;
  }

  void tell(zmq::socket_t& socket, Rank to, const Control& control) {
    try {
      zmq::message_t name(zeromq::identity_of(to));
      if (zeromq::send_part(socket, name, true)) speak(socket, to, control);
    } catch (const zmq::error_t&) {
      // Gone since its hello: the endpoints will find it lost and say so with its rank.
      return;
    }
  }

  std::vector<PeerAddress> visit() {
    zmq::socket_t socket = zeromq::make_dialer(context_->parts().context, options_, Rank{0}, 0);
    // Before the connection, or it is ignored.
    socket.set(zmq::sockopt::maxmsgsize, static_cast<std::int64_t>(kLongestHello));
    zeromq::connect(socket, Rank{0}, rendezvous_.url);
    Note note;
    const auto interval = kHelloInterval * std::max(1, options_.world / kHellosAtOnce);
    HostAnswers host(interval);
    auto next_hello = Clock::now();
    auto turn = Clock::now();
    do {
      heed_obituary();
      const auto took = Clock::now() - std::exchange(turn, Clock::now());
      if (took > kLongestTurn) host.suspended(took);
      if (Clock::now() > deadline_ || host.silent_for(options_.silence))
        throw PeerHangs(host.complaint(rendezvous_.url, keyed()));
      if (Clock::now() < next_hello) continue;
      next_hello = Clock::now() + interval;
      speak(socket,
            Rank{0},
            Hello{hello_text(
                fields_,
                {{"data", listener_.address().data}, {"control", listener_.address().control}})});
    } while (!receive(socket, note) || only_listens(host, note));
    if (const auto* abort = std::get_if<Abort>(&note.control)) throw PeerHangs(abort->text);
    if (const auto* refused = std::get_if<Refused>(&note.control)) throw Mismatch(refused->text);
    std::vector<PeerAddress> addresses;
    std::istringstream lines(std::get<Welcome>(note.control).text);
    for (PeerAddress address;
         std::getline(lines, address.data) && std::getline(lines, address.control);)
      addresses.push_back(address);
    return addresses;
  }

  /// True unless the note decides the meeting: it may be a list of those who have not come, and
  /// another one than before extends the patience.
  bool only_listens(HostAnswers& host, const Note& note) {
    const auto* missing = std::get_if<Missing>(&note.control);
    const auto now = Clock::now();
    if (missing != nullptr && host.heard(missing->text, now))
      deadline_ = now + rendezvous_.patience;
    return !std::holds_alternative<Abort>(note.control) &&
           !std::holds_alternative<Refused>(note.control) &&
           !std::holds_alternative<Welcome>(note.control);
  }

  /// The others may have met already: then a welcome is on its way, and the endpoints find the same
  /// rank lost. Who left at once would be taken for the lost one.
  void heed_obituary() {
    if (rendezvous_.obituary.empty()) return;
    std::ifstream file(rendezvous_.obituary);
    std::string sentence;
    if (!std::getline(file, sentence)) return;
    if (!last_chance_) last_chance_ = Clock::now() + kLastChance;
    if (options_.rank == Rank{0} || Clock::now() > *last_chance_)
      throw PeerLost("lost a rank before all had met: " + sentence);
  }

  void speak(zmq::socket_t& socket, Rank to, const Control& control) const {
    Envelope envelope;
    envelope.job = options_.job;
    envelope.epoch = options_.epoch;
    envelope.source = options_.rank;
    envelope.destination = to;
    const ControlBytes bytes = encode(envelope, control);
    zmq::message_t head(bytes.header.data(), bytes.header.size());
    zmq::message_t body(bytes.text);
    // Never waits: a connection that was refused for good has no place for another word.
    if (zeromq::send_part(socket, head, true)) zeromq::send_part(socket, body, false);
  }

  /// Waits up to 200 ms for a well-formed note of this job; anything else is dropped.
  bool receive(zmq::socket_t& socket, Note& note) {
    zmq::pollitem_t item{socket.handle(), 0, ZMQ_POLLIN, 0};
    if (zmq_poll(&item, 1, 200) <= 0) return false;  // or a signal came
    std::vector<zmq::message_t> parts;
    do {
      parts.emplace_back();
      if (!zeromq::receive_part(socket, parts.back())) return false;
    } while (parts.back().more());
    const bool host = options_.rank == Rank{0};
    if (parts.size() != (host ? 3U : 2U)) return false;
    const int from = host ? zeromq::rank_of(parts.front(), kMostRanks) : 0;
    if (from < 0 || from == options_.rank.value) return false;
    if (host && !speaks_for_itself(parts)) return false;
    note.from = Rank{from};
    const zmq::message_t& header = parts[parts.size() - 2];
    return understand({header.data<std::byte>(), header.size()}, parts.back(), note);
  }

  /// A header of another protocol version is understood as far as that: its version differs.
  bool understand(std::span<const std::byte> header,
                  const zmq::message_t& payload,
                  Note& note) const {
    const FrameExpectation expected{
        options_.job, options_.epoch, note.from, options_.rank, kLongestHello};
    if (const auto version = other_version(header)) {
      const HelloFields theirs = {{"protocol", std::to_string(*version)}};
      if (options_.rank == Rank{0})
        note.control = Hello{hello_text(theirs, {})};
      else
        note.control = Refused{difference(theirs, fields_, options_.rank)};
      return true;
    }
    Envelope ignored;
    const std::span text(payload.data<std::byte>(), payload.size());
    return decode(header, text, expected, ignored, note.control) == Refusal::None;
  }

  [[nodiscard]] bool keyed() const {
    return options_.link == ZeroMqLink::Tcp && !options_.insecure;
  }

  bool speaks_for_itself(std::vector<zmq::message_t>& parts) const {
    if (!keyed()) return true;
    try {
      return parts.front().to_string_view() == parts[1].gets("User-Id");
    } catch (const zmq::error_t&) {
      return false;
    }
  }

  std::string missing(const Hellos& said) const {
    std::string text;
    for (int i = 1; i < options_.world; ++i)
      if (!said.contains(i)) text += " rank " + std::to_string(i);
    return text;
  }

  const RendezvousOptions& rendezvous_;
  ZeroMqOptions options_;
  std::shared_ptr<ZeroMqContext> context_;
  ZeroMqListener listener_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point deadline_;
  Clock::time_point next_tell_ = start_ + kTellInterval;
  HelloFields fields_;
  zeromq::MeetingPlace place_;
  bool differs_ = false;
  std::optional<Clock::time_point> last_chance_;  // for a welcome, once a rank is known to be lost
};

}  // namespace

std::unique_ptr<Endpoint> meet(const RendezvousOptions& rendezvous,
                               const ZeroMqOptions& endpoint,
                               std::shared_ptr<ZeroMqContext> context) {
  return Meeting(rendezvous, endpoint, std::move(context)).hold();
}

}  // namespace millrace
