// How ranks become connected over any backend: a backend's listener says where its
// rank is reached, carries the notes of the meeting at which all learn it, and opens the endpoint.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/core/ids.hpp"
#include "millrace/transport/endpoint.hpp"

namespace millrace {

/// Where a rank is reached: one line of text that its backend makes and reads. To all others it
/// is opaque.
struct PeerAddress {
  std::string text;

  friend bool operator==(const PeerAddress&, const PeerAddress&) = default;
};

/// Who a rank is among those that it is to be connected with.
struct Membership {
  Rank rank = {};
  int world = 1;
  std::uint64_t job = 0;    ///< one run of one job; what others say is dropped
  std::uint32_t epoch = 0;  ///< one incarnation of the set of endpoints
};

/// Options of every endpoint between processes.
struct LinkOptions : Membership {
  std::vector<ChannelDepth> depths = {};  ///< channels not named here are unbounded
  std::uint64_t largest_payload = std::uint64_t{1} << 30U;  ///< bytes of one tensor
  bool hash_payloads = true;  ///< detect damage of tensors, about 50 us per MiB and side

  /// Between two heartbeats (over sockets and MPI: to eight peers); once a second, or eight times
  /// in `heartbeat_timeout`, while a rank does the same for longer than a second.
  std::chrono::milliseconds heartbeat{100};
  /// A rank without a heartbeat for this long is stopped or cut off. Over sockets and MPI at least
  /// four rounds of heartbeats, which take longer in a world of hundreds of ranks.
  std::chrono::milliseconds heartbeat_timeout{10'000};
  /// The least that one action may take before its rank hangs. Without it, and when a hundred of
  /// its kind (op and stage) have ended on that rank: eight times what 99 of 100 of them took, at
  /// least a second, and 0.2 s. Before: 10 s (or this), or sixteen times the longest of its kind if
  /// that is more; the first of a kind may take twelve times as much. So a slow stage stretches its
  /// own limit. Work outside the program (data, hooks, saving) has none.
  std::optional<std::chrono::milliseconds> action_timeout = {};
};

/// A note of a meeting, as bytes.
struct RendezvousMessage {
  Rank from;
  std::vector<std::byte> header;
  std::string text;
};

/// Carries notes between rank 0 and the ranks that come to meet it, and between no others.
/// Thread-safety: thread-affine.
class RendezvousChannel {
 public:
  RendezvousChannel() = default;
  RendezvousChannel(const RendezvousChannel&) = delete;
  RendezvousChannel& operator=(const RendezvousChannel&) = delete;
  virtual ~RendezvousChannel() = default;

  /// Never waits. A note to a rank that is gone or takes no more of them is lost: notes that matter
  /// are sent again.
  virtual void send(Rank to, std::span<const std::byte> header, std::string_view text) = 0;

  /// Waits so long for a note; nothing when none came, or one from a process that is not the
  /// rank that it claims to be.
  [[nodiscard]] virtual std::optional<RendezvousMessage> receive(
      std::chrono::milliseconds longest) = 0;

  /// True where only who has a key is heard.
  [[nodiscard]] virtual bool keyed() const { return false; }
};

/// A rank that listens but does not send yet: its address must first reach the others.
/// Thread-safety: externally synchronised.
class Listener {
 public:
  Listener() = default;
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  virtual ~Listener() = default;

  [[nodiscard]] virtual const Membership& member() const = 0;
  [[nodiscard]] virtual PeerAddress address() const = 0;

  /// The way to the meeting at `url`, whose notes are at most `longest_note` bytes: rank 0 listens
  /// there. Throws InvalidArgument for another text, TransportError when rank 0
  /// cannot listen there.
  [[nodiscard]] virtual std::unique_ptr<RendezvousChannel> rendezvous_channel(
      const std::string& url, std::size_t longest_note) = 0;

  /// Connects to all ranks; `addresses` by rank, its own among them. Throws TransportError for an
  /// address that its backend did not make, InvalidArgument when there are not as many as ranks or
  /// when it was called before.
  [[nodiscard]] virtual std::unique_ptr<Endpoint> open(
      const std::vector<PeerAddress>& addresses) = 0;

  /// After `open`, where not all ranks need be connected in the same way: how, as a message.
  [[nodiscard]] virtual std::string connections() const { return {}; }
};

/// Version of what travels between processes, compared before everything else: ranks of two
/// versions name both and part.
inline constexpr std::uint16_t kProtocolVersion = 5;

/// Names and values that must be equal on all ranks, in the order in which they are compared.
/// Neither holds a line break; names hold no "=" and do not begin with "@".
using HelloFields = std::vector<std::pair<std::string, std::string>>;

struct RendezvousOptions {
  /// Where rank 0 listens, in the words of the backend: "ipc://" in a private directory, or
  /// "tcp://address:port".
  std::string url = {};
  /// Protocol version and world size are compared first, without being named here.
  HelloFields fields = {};
  /// How long rank 0 waits for the next rank to come, and every other one for news of that; so a
  /// meeting of many ranks on few cores lasts as long as it makes progress.
  std::chrono::milliseconds join_timeout{60'000};
  /// How long a rank 0 that has answered may then say nothing, though not less than 1 s.
  std::chrono::milliseconds heartbeat_timeout{10'000};
  /// On rank 0, about once a second while it waits: how many ranks, itself included, are there.
  std::function<void(int came)> progress = {};
  /// A file that the launcher writes when a rank ends too soon, with the message that reports it;
  /// its appearance ends the wait. Empty: none.
  std::string failure_notice = {};
};

/// Blocks until all ranks have said the same, and opens `listener`, which says who this is. Throws
/// Mismatch on every rank, naming field, rank and both values, when a rank differs; PeerLost with
/// the failure_notice; PeerHangs when not all ranks come in time, naming the missing ones on all
/// that came, and when rank 0 falls silent; and what Listener::rendezvous_channel and
/// Listener::open throw. A world of one rank has no rendezvous and no url.
[[nodiscard]] std::unique_ptr<Endpoint> meet(const RendezvousOptions& rendezvous,
                                             Listener&& listener);

}  // namespace millrace
