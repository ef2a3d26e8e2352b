// Whose turn it is, what happens in a turn, and what is done on command.
#include "transport/zeromq/owner.hpp"

#include <algorithm>
#include <array>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>

namespace millrace::zeromq {

namespace {

/// Acknowledgements only free memory: they travel with the next frame that goes there, and have one
/// of their own for several frames or many bytes, or when the sender asks.
constexpr int kFramesPerAck = 8;
constexpr std::uint64_t kBytesPerAck = std::uint64_t{4} << 20U;

/// What comes while the rank computes waits this long.
constexpr std::chrono::milliseconds kRest{10};

bool can_lead(const Tensor& tensor) {
  return tensor.margins() == Margins::Whole && tensor.bytes() >= kInPlaceBytes;
}

constexpr int kMonitored = ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED |
                           ZMQ_EVENT_CONNECT_RETRIED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;

}  // namespace

Owner::Owner(const ZeroMqOptions& options,
             Listeners listeners,
             const std::vector<PeerAddress>& addresses,
             Desk& desk,
             const ProgressSlot& slot)
    : options_(options),
      desk_(desk),
      slot_(slot),
      listeners_(std::move(listeners)),
      board_(options.rank, options.world, Clock::now()),
      last_tick_(Clock::now()),
      next_beat_(last_tick_),
      next_look_(last_tick_) {
  require(addresses.size() == static_cast<std::size_t>(options.world),
          "there are " + std::to_string(addresses.size()) + " addresses for " +
              std::to_string(options.world) + " ranks");
  for (int i = 0; i < options.world; ++i) add_peer(Rank{i}, addresses[static_cast<std::size_t>(i)]);
  wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_ < 0) throw TransportError("cannot make an eventfd");
  doors_ = {{{listeners_.data.get(zmq::sockopt::fd), POLLIN, POLLIN},
             {listeners_.control.get(zmq::sockopt::fd), POLLIN, POLLIN},
             {wake_, POLLIN, 0}}};
  thread_ = std::jthread([this] { run(); });
}

Owner::~Owner() {
  end_ = true;
  post(Question{options_.rank, 0});
  thread_.join();
  take_turn(std::chrono::milliseconds(0));  // what was posted last
  // Closing drops what the network layer still holds, and only then are the tensors ours again.
  for (auto& peer : peers_) {
    if (!peer) continue;
    // The network layer's own thread writes events and would wait for ever for a reader that is
    // gone: no more of them before the reader goes.
    zmq_socket_monitor(peer->data.handle(), nullptr, 0);
    peer->data.close();
    peer->control.close();
    peer->monitor.close();
  }
  const auto patience = Clock::now() + std::chrono::seconds(5);
  for (auto& peer : peers_) {
    if (!peer) continue;
    peer->out.acknowledge(peer->out.next());
    for (peer->out.sweep(); !peer->out.landed() && Clock::now() < patience; peer->out.sweep())
      std::this_thread::yield();
    // Memory that the network layer never gave back is not freed under its hands.
    if (!peer->out.landed()) static_cast<void>(peer.release());
  }
  ::close(wake_);
}

void Owner::add_peer(Rank rank, const PeerAddress& address) {
  if (rank == options_.rank) {
    peers_.emplace_back();
    return;
  }
  zmq::context_t& context = listeners_.context->parts().context;
  const FrameExpectation expected{
      options_.job, options_.epoch, rank, options_.rank, options_.largest_payload};
  auto peer =
      std::make_unique<Peer>(Peer{.rank = rank,
                                  .data = make_dialer(context, options_, rank, 0),
                                  .control = make_dialer(context, options_, rank, kLastWordMs),
                                  .monitor = zmq::socket_t(context, ZMQ_PAIR),
                                  .out = {},
                                  .in = {expected, options_.attempts},
                                  .assembling = {},
                                  .next_probe = {},
                                  .lost_since = {}});
  connect(peer->control, rank, address.control);
  // Before the connection, which is what it tells of.
  const std::string name =
      "inproc://monitor-" + std::to_string(reinterpret_cast<std::uintptr_t>(peer.get()));
  if (zmq_socket_monitor(peer->data.handle(), name.c_str(), kMonitored) != 0)
    throw TransportError("cannot watch the connection to rank " + std::to_string(rank.value));
  peer->monitor.set(zmq::sockopt::linger, 0);
  peer->monitor.connect(name);
  connect(peer->data, rank, address.data);
  peer->probe_interval = options_.probe_after;
  peers_.push_back(std::move(peer));
}

void Owner::post(Command command) noexcept {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = commands_.empty();
    commands_.push_back(std::move(command));
  }
  const std::uint64_t one = 1;
  if (first) static_cast<void>(::write(wake_, &one, sizeof one));
}

void Owner::now(Command command) noexcept {
  const std::lock_guard lock(turn_);
  guarded([&] { std::visit([&](auto& order) { handle(order); }, command); });
}

/// The second thread: short turns whenever the rank takes none itself.
void Owner::run() noexcept {
  auto pause = kRest;
  while (!end_) {
    pollfd wake{wake_, POLLIN, 0};
    const bool called = ::poll(&wake, 1, static_cast<int>(pause.count())) > 0;
    std::unique_lock lock(turn_, std::defer_lock);
    if (called) lock.lock();
    // A rank that has the turn does all this itself.
    if (!called && !lock.try_lock()) continue;
    take_turn(std::chrono::milliseconds(0));
    pause = std::min(patience(), kRest);
  }
}

template <class Body>
void Owner::guarded(const Body& body) noexcept {
  try {
    body();
  } catch (const std::exception& error) {
    fail(FailureCause::Protocol,
         std::string("the transport of rank ") + std::to_string(options_.rank.value) +
             " failed: " + error.what());
  }
}

void Owner::take_turn(std::chrono::milliseconds longest) noexcept {
  guarded([&] { poll_once(longest); });
}

/// How long nothing needs to be done unless something happens.
std::chrono::milliseconds Owner::patience() const {
  auto interval = options_.heartbeat;
  auto tell_at = Clock::time_point::max();
  bool busy = leaving_;
  for (const auto& peer : peers_) {
    if (!peer) continue;
    busy = busy || !peer->out.settled() || peer->question != peer->answered || peer->lost_since;
    tell_at = std::min(tell_at, peer->tell_at);
  }
  if (busy) interval = std::min({interval, options_.probe_after / 2, options_.heartbeat / 2});
  if (tell_at != Clock::time_point::max())
    interval =
        std::min(interval, std::chrono::ceil<std::chrono::milliseconds>(tell_at - Clock::now()));
  return std::max(interval, std::chrono::milliseconds(1));
}

void Owner::poll_once(std::chrono::milliseconds longest) {
  // Three things only: every further socket would cost system calls in every turn. A socket's door
  // opens when something new comes: it is read until it is empty, or stays open.
  auto& [data, control, wake] = doors_;
  const bool open = data.revents != 0 || control.revents != 0;
  const std::array<short, 2> left = {data.revents, control.revents};
  static_cast<void>(
      ::poll(doors_.data(), doors_.size(), open ? 0 : static_cast<int>(longest.count())));
  if (wake.revents != 0) take_commands();
  data.revents = (data.revents | left[0]) != 0 && read_data() ? POLLIN : 0;
  control.revents = (control.revents | left[1]) != 0 && read_control() ? POLLIN : 0;
  const auto now = Clock::now();
  acknowledge(now);
  tick(now);
}

void Owner::acknowledge(Clock::time_point now) {
  for (const auto& peer : peers_) {
    if (!peer) continue;
    if (now >= peer->tell_at || peer->unacknowledged >= kFramesPerAck ||
        peer->unacknowledged_bytes >= kBytesPerAck)
      say(*peer, header_to(*peer, FrameKind::Ack));
    peer->out.sweep();
  }
}

void Owner::take_commands() {
  std::uint64_t ignored = 0;
  static_cast<void>(::read(wake_, &ignored, sizeof ignored));
  std::vector<Command> commands;
  {
    const std::lock_guard lock(mutex_);
    commands.swap(commands_);
  }
  for (Command& command : commands) std::visit([&](auto& order) { handle(order); }, command);
}

void Owner::handle(Outgoing& message) {
  Peer& peer = *peers_[message.to.index()];
  if (stopped_ || peer.left) return;
  if (peer.out.settled()) {
    peer.probe_interval = options_.probe_after;
    peer.next_probe = Clock::now() + peer.probe_interval;
  }
  FrameHeader header = header_to(peer, kind_of(message.tag.direction));
  header.tag = message.tag;
  header.tensor_count = static_cast<int>(message.tensors.size());
  for (std::size_t i = 0; i < std::max<std::size_t>(message.tensors.size(), 1); ++i) {
    Tensor tensor = message.tensors.empty() ? Tensor() : std::move(message.tensors[i]);
    header.tensor_index = static_cast<int>(i);
    header.absent = !tensor;
    header.dtype = tensor.dtype();
    header.dims = tensor ? tensor.dims() : Dims();
    header.payload_bytes = tensor ? tensor.bytes() : 0;
    header.hashed = i < message.hashes.size();
    header.payload_hash = header.hashed ? message.hashes[i] : 0;
    header.lead = can_lead(tensor) ? peer.lead : 0;
    transmit(peer, peer.out.add(header, std::move(tensor)));
  }
}

void Owner::handle(const Question& question) {
  if (question.to == options_.rank) return;  // only a wake-up
  Peer& peer = *peers_[question.to.index()];
  peer.question = question.number;
  probe(peer);
}

void Owner::handle(const Credit& credit) {
  Peer& peer = *peers_[credit.to.index()];
  say(peer, header_to(peer, FrameKind::Ack));
}

void Owner::handle(const Stop& stop) {
  if (stopped_) return;
  stopped_ = stop;
  shout(stop);
}

void Owner::handle(const Leave&) {
  leaving_ = true;
  leave_when_settled(Clock::now());
}

}  // namespace millrace::zeromq
