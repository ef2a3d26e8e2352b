// Start and end of the loop, its turns, and the work it does when the rank asks for it.
#include "transport/mpi/message_loop.hpp"

#include <fmt/format.h>
#include <utility>

#include "transport/link/endpoint.hpp"

namespace millrace::mpi {

namespace {

using namespace std::chrono_literals;

/// Between two turns of the progress thread; where MPI still sends, it may need us to go on.
constexpr auto kServiceRest = 2ms;
constexpr std::chrono::microseconds kServiceRestWhileSending{200};
/// At the end: for the failure notice to leave.
constexpr auto kFailureNotice = 200ms;
constexpr auto kLookInterval = 25ms;
/// Turns follow each other within this time, unless this process was not running.
constexpr auto kLate = 100ms;

}  // namespace

MessageLoop::MessageLoop(const MpiOptions& options, Mailbox& mailbox, const ProgressSlot& slot)
    : options_(options),
      self_{options.rank},
      mailbox_(mailbox),
      slot_(slot),
      world_(World::started()),
      position_(position_of(self_, options.places)),
      heartbeat_interval_(options.world, options.heartbeat, options.heartbeat_timeout),
      watch_(options, heartbeat_interval_.timeout(), slot, {}),
      last_turn_(Clock::now()),
      next_beat_(last_turn_),
      next_look_(last_turn_) {
  add_peers();
  thread_ = std::jthread([this] { run(); });
}

void MessageLoop::add_peers() {
  for (int i = 0; i < options_.world; ++i) {
    const FrameExpectation expected{
        options_.job, options_.epoch, Rank{i}, self_, options_.largest_payload};
    peers_.push_back({.rank = Rank{i},
                      .position = position_of(Rank{i}, options_.places),
                      .in = FrameJudge(expected),
                      .arrivals = {},
                      .assembling = {}});
    if (Rank{i} != self_) monitor_.excuse(Rank{i});
  }
  for (const Rank rank : watched_by(self_, options_.world)) {
    peers_[rank.index()].watched = true;
    monitor_.expect(rank);
  }
  next_heartbeat_ = self_.index();  // ranks begin with different peers
}

MessageLoop::~MessageLoop() {
  {
    const std::lock_guard lock(rest_);
    end_ = true;
  }
  rested_.notify_all();
  thread_.join();
  const std::lock_guard lock(world_.turn());
  if (!settled_) {
    // No rank is to wait for one that leaves without a message.
    guarded([&] { fail(watch_.lost(self_, "it gave up", Clock::now())); });
    world_.abandon();
  }
  for (Pause pause(Clock::now() + kFailureNotice); world_.sending() && pause.sleep();)
    guarded([&] { world_.sweep(); });
  for (Peer& peer : peers_)
    for (Arrival& arrival : peer.arrivals) {
      // MPI still writes into it.
      if (arrival.request != MPI_REQUEST_NULL)
        static_cast<void>(new Tensor(std::move(arrival.tensor)));
    }
}

template <class Body>
bool MessageLoop::guarded(const Body& body) noexcept {
  try {
    body();
    return true;
  } catch (const std::exception& error) {
    if (mailbox_.fail(FailureCause::Protocol, broken_link(self_, error))) stopped_ = true;
    return false;
  }
}

void MessageLoop::run() noexcept {
  std::chrono::microseconds pause = kServiceRest;
  for (;;) {
    {
      std::unique_lock lock(rest_);
      rested_.wait_for(lock, pause, [&] { return end_ || hurried_; });
      hurried_ = false;
      if (end_) return;
    }
    pause = kServiceRest;
    if (attended_) continue;
    const std::lock_guard lock(world_.turn());
    take_turn();
    if (world_.sending()) pause = kServiceRestWhileSending;
  }
}

/// A tensor is on its way, and the rank may be about to compute.
void MessageLoop::hurry() {
  {
    const std::lock_guard lock(rest_);
    hurried_ = true;
  }
  rested_.notify_all();
}

bool MessageLoop::take_turn() noexcept {
  bool moved = false;
  guarded([&] {
    moved = world_.sweep();
    moved = read() || moved;
    for (Peer& peer : peers_) moved = land(peer) || moved;
    tick(Clock::now());
  });
  return moved;
}

/// Hashes before its turn.
void MessageLoop::send(Rank to, const MessageTag& tag, TensorList tensors) {
  const auto hashes = hashes_of(options_, tensors);
  const std::lock_guard lock(world_.turn());
  guarded([&] {
    Peer& peer = peers_[to.index()];
    if (stopped_ || peer.left) return;
    DataHeader header;
    static_cast<Envelope&>(header) = envelope_to(peer);
    header.tag = tag;
    for_each_frame(header, tensors, hashes, [&](const DataHeader& each, Tensor tensor) {
      send_tensor(peer, each, std::move(tensor));
    });
    if (world_.sending()) hurry();
  });
}

void MessageLoop::send_tensor(Peer& peer, DataHeader header, Tensor tensor) {
  header.sequence = peer.sent++;
  const FrameBytes head = encode(header);
  std::vector<std::byte> bytes(head.begin(), head.end());
  if (!travels_apart(header.payload_bytes)) {
    const auto* data = static_cast<const std::byte*>(tensor.data());
    bytes.insert(bytes.end(), data, data + header.payload_bytes);
    tensor = Tensor();
  }
  world_.send(peer.position.process,
              tag_to(peer, Purpose::Frame),
              std::move(bytes),
              tag_to(peer, Purpose::Payload),
              std::move(tensor));
}

int MessageLoop::tag_to(const Peer& peer, Purpose purpose) const {
  return world_.tag_of(options_.epoch, purpose, position_.place, peer.position.place);
}

void MessageLoop::ask(Rank to, std::uint64_t question) noexcept {
  const std::lock_guard lock(world_.turn());
  guarded([&] { say(peers_[to.index()], Probe{peers_[to.index()].sent, question, 0}); });
}

void MessageLoop::acknowledge_taken(Rank from, Direction direction) noexcept {
  if (!mailbox_.owes_credit(from, direction)) return;
  const std::lock_guard lock(world_.turn());
  guarded([&] { say(peers_[from.index()], Ack{peers_[from.index()].question}); });
}

bool MessageLoop::leave(Deadline /*deadline*/) noexcept {
  const std::lock_guard lock(world_.turn());
  leaving_ = true;
  guarded([&] { leave_when_settled(); });
  return true;
}

void MessageLoop::stop(const Failure& failure) noexcept {
  const std::lock_guard lock(world_.turn());
  guarded([&] { abort_all(failure.cause, failure.text); });
}

void MessageLoop::fail(FailureCause cause, const std::string& text) {
  if (mailbox_.fail(cause, text)) abort_all(cause, text);
}

/// To every rank: no rank passes it on.
void MessageLoop::abort_all(FailureCause cause, const std::string& text) {
  if (std::exchange(stopped_, true)) return;
  for (Peer& peer : peers_)
    if (peer.rank != self_ && !peer.left) say(peer, Abort{cause, text.substr(0, kLongestText)});
}

void MessageLoop::say(Peer& peer, const Control& control) {
  const ControlBytes words = encode(envelope_to(peer), control);
  std::vector<std::byte> bytes(words.header.begin(), words.header.end());
  const auto text = std::as_bytes(std::span(words.text));
  bytes.insert(bytes.end(), text.begin(), text.end());
  world_.send(peer.position.process, tag_to(peer, Purpose::Frame), std::move(bytes));
}

Envelope MessageLoop::envelope_to(const Peer& peer) {
  Envelope envelope;
  envelope.job = options_.job;
  envelope.epoch = options_.epoch;
  envelope.source = self_;
  envelope.destination = peer.rank;
  envelope.acknowledged = peer.in.expected();
  envelope.taken = mailbox_.taken(peer.rank);
  return envelope;
}

void MessageLoop::tick(Clock::time_point now) {
  if (const auto gap = now - std::exchange(last_turn_, now); gap > kLate) monitor_.suspended(gap);
  if (leaving_) leave_when_settled();
  if (stopped_) return;
  if (now >= next_beat_) beat(now);
  if (now < next_look_) return;
  next_look_ = now + kLookInterval;
  if (const auto failure = watch_.judge(now)) fail(*failure);
}

void MessageLoop::beat(Clock::time_point now) {
  const Activity activity = slot_.now();
  const auto age = now - activity.since;
  next_beat_ = now + heartbeat_interval_.interval(age);
  int reported = 0;
  for (std::size_t i = 0; i < peers_.size() && reported < HeartbeatInterval::kTogether; ++i) {
    Peer& peer = peers_[next_heartbeat_++ % peers_.size()];
    if (peer.rank == self_ || peer.left || !peer.watched) continue;
    say(peer, Progress{activity, age});
    ++reported;
  }
}

/// A shutdown message follows everything that was sent, so its answer says that all has come.
void MessageLoop::leave_when_settled() {
  bool done = true;
  for (Peer& peer : peers_) {
    if (peer.rank == self_ || peer.left || peer.bye_acknowledged) continue;
    done = false;
    if (!std::exchange(peer.said_bye, true)) say(peer, Bye{});
  }
  if (!done) return;
  settled_ = true;
  mailbox_.settle();
}

}  // namespace millrace::mpi
