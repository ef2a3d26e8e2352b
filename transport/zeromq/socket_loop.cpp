// Whose turn it is, what happens in a turn, and what is done on command.
#include "transport/zeromq/socket_loop.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>

#include "transport/link/endpoint.hpp"

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

/// After this number of rests in which the rank took all turns itself, the progress thread sleeps.
constexpr int kIdleRests = 10;
constexpr std::chrono::milliseconds kSleep{2000};

/// Turns follow each other so soon at least, unless this process was not running.
constexpr std::chrono::milliseconds kLate{100};

constexpr int kMostDialling = 8;

}  // namespace

SocketLoop::SocketLoop(const ZeroMqOptions& options,
                       Listeners listeners,
                       const std::vector<SocketAddresses>& addresses,
                       Mailbox& mailbox,
                       const ProgressSlot& slot)
    : options_(options),
      mailbox_(mailbox),
      slot_(slot),
      listeners_(std::move(listeners)),
      heartbeat_interval_(options.world, options.heartbeat, options.heartbeat_timeout),
      watch_(options,
             heartbeat_interval_.timeout(),
             slot,
             [this](Rank rank, Clock::time_point now) { return news_of(rank, now); }),
      watched_(watched_by(options.rank, options.world)),
      last_tick_(Clock::now()),
      next_beat_(last_tick_),
      next_look_(last_tick_),
      bye_interval_(options.probe_after / 2) {
  wake_ = shared_memory::Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_) throw TransportError("cannot make an eventfd");
  polled_ = {{listeners_.data.get(zmq::sockopt::fd), POLLIN, POLLIN},
             {listeners_.control.get(zmq::sockopt::fd), POLLIN, POLLIN},
             {wake_.number(), POLLIN, 0}};
  for (int i = 0; i < options.world; ++i) add_peer(Rank{i}, addresses[static_cast<std::size_t>(i)]);
  for (const auto& peer : peers_)
    if (peer) monitor_.excuse(peer->rank);
  for (const Rank rank : watched_) monitor_.expect(rank);
  next_heartbeat_ = options.rank.index();  // ranks begin with different peers
  dial_next();
  thread_ = std::jthread([this] { run(); });
}

SocketLoop::~SocketLoop() {
  end_ = true;
  post(Question{options_.rank, 0});
  thread_.join();
  take_turn(std::chrono::milliseconds(0));  // what was posted last
  // Closing drops what the network layer still holds, and only then are the tensors ours again.
  for (auto& peer : peers_) {
    if (!peer) continue;
    peer->data.reset();
    peer->control.reset();
  }
  const auto timeout = Clock::now() + std::chrono::seconds(5);
  for (auto& peer : peers_) {
    if (!peer) continue;
    peer->out.acknowledge(peer->out.next());
    for (peer->out.sweep(); !peer->out.landed() && Clock::now() < timeout; peer->out.sweep())
      std::this_thread::yield();
    // Memory that the network layer never gave back is not freed under its hands.
    if (!peer->out.landed()) static_cast<void>(peer.release());
  }
}

void SocketLoop::add_peer(Rank rank, const SocketAddresses& address) {
  if (rank == options_.rank) {
    peers_.emplace_back();
    return;
  }
  const FrameExpectation expected{
      options_.job, options_.epoch, rank, options_.rank, options_.largest_payload};
  auto peer = std::make_unique<Peer>(Peer{.rank = rank,
                                          .address = address,
                                          .control = {},
                                          .data = {},
                                          .out = {},
                                          .in = {expected, options_.attempts},
                                          .assembling = {},
                                          .next_probe = {}});
  peer->probe_interval = options_.probe_after;
  peers_.push_back(std::move(peer));
}

std::unique_ptr<Line> SocketLoop::dial(Rank rank, int linger_ms, const std::string& address) {
  auto line = std::make_unique<Line>(
      listeners_.context->parts().context, options_, rank, linger_ms, address);
  polled_.push_back({line->monitor.get(zmq::sockopt::fd), POLLIN, 0});
  lines_.push_back(line.get());
  ++dialling_;
  return line;
}

/// Some connections at a time: many hand-shakes at once would all end late.
void SocketLoop::dial_next() {
  for (; next_dialled_ < watched_.size() && dialling_ < kMostDialling; ++next_dialled_)
    control_to(*peers_[watched_[next_dialled_].index()]);
}

/// Whether that rank may notice that we go.
bool SocketLoop::knows(const Peer& peer) const {
  return peer.control || peer.data || monitor_.expects(peer.rank);
}

zmq::socket_t& SocketLoop::control_to(Peer& peer) {
  if (!peer.control) peer.control = dial(peer.rank, kLastWordMs, peer.address.control);
  return peer.control->socket;
}

/// Most ranks never have a tensor for each other.
zmq::socket_t& SocketLoop::data_to(Peer& peer) {
  if (!peer.data) peer.data = dial(peer.rank, 0, peer.address.data);
  return peer.data->socket;
}

void SocketLoop::post(Command command) noexcept {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = commands_.empty();
    commands_.push_back(std::move(command));
  }
  if (first) wake();
}

void SocketLoop::wake() const noexcept {
  const std::uint64_t one = 1;
  static_cast<void>(::write(wake_.number(), &one, sizeof one));
}

void SocketLoop::now(Command command) noexcept {
  const std::lock_guard lock(turn_);
  guarded([&] { std::visit([&](auto& order) { handle(order); }, command); });
}

/// The progress thread: short turns whenever the rank takes none itself.
void SocketLoop::run() noexcept {
  auto pause = kRest;
  int idle = 0;
  while (!end_) {
    if (idle > kIdleRests) sleep_while_attended();
    pollfd woken{wake_.number(), POLLIN, 0};
    const bool called = ::poll(&woken, 1, static_cast<int>(pause.count())) > 0;
    std::unique_lock lock(turn_, std::defer_lock);
    if (called) lock.lock();
    // A rank that has the turn does all this itself.
    if (!called && !lock.try_lock()) {
      ++idle;
      continue;
    }
    idle = 0;
    take_turn(std::chrono::milliseconds(0));
    pause = std::min(longest_rest(), kRest);
  }
}

void SocketLoop::sleep_while_attended() {
  asleep_ = true;
  pollfd woken{wake_.number(), POLLIN, 0};
  if (attended_) ::poll(&woken, 1, static_cast<int>(kSleep.count()));
  asleep_ = false;
}

void SocketLoop::depart() noexcept {
  attended_ = false;
  if (asleep_) wake();
}

template <class Body>
void SocketLoop::guarded(const Body& body) noexcept {
  try {
    body();
  } catch (const std::exception& error) {
    fail(FailureCause::Protocol, broken_link(options_.rank, error));
  }
}

void SocketLoop::take_turn(std::chrono::milliseconds longest) noexcept {
  guarded([&] { poll_once(longest); });
}

/// True when this rank has done the same for a while and nothing is on its way to or from it: then
/// nothing but the next beat and what comes needs a turn.
bool SocketLoop::rests(Clock::time_point now) const {
  const auto is_down = [](const std::unique_ptr<Line>& line) { return line && !line->watch.up(); };
  if (leaving_ || stopped_ || now - slot_.now().since <= HeartbeatInterval::kSettled) return false;
  if (next_dialled_ < watched_.size()) return false;
  return std::none_of(peers_.begin(), peers_.end(), [&](const auto& peer) {
    return peer && !peer->left && (is_down(peer->control) || is_down(peer->data));
  });
}

/// How long nothing needs to be done unless something happens.
std::chrono::milliseconds SocketLoop::longest_rest() const {
  const auto now = Clock::now();
  auto tell_at = Clock::time_point::max();
  bool busy = leaving_;
  for (const auto& peer : peers_) {
    if (!peer) continue;
    busy = busy || !peer->out.settled() || peer->question != peer->answered;
    tell_at = std::min(tell_at, peer->tell_at);
  }
  Clock::duration interval = options_.heartbeat;
  if (busy)
    interval = std::min({options_.heartbeat / 2, options_.probe_after / 2});
  else if (rests(now))
    interval = std::min(next_beat_ - now, monitor_.until_next_limit(now, options_.action_timeout));
  if (tell_at != Clock::time_point::max()) interval = std::min(interval, tell_at - now);
  return std::max(std::chrono::ceil<std::chrono::milliseconds>(interval),
                  std::chrono::milliseconds(1));
}

void SocketLoop::poll_once(std::chrono::milliseconds longest) {
  // Three things only: every further socket would cost system calls in every turn. A socket's door
  // opens when something new comes: it is read until it is empty, or stays open.
  const std::array<short, 2> left = {polled_[0].revents, polled_[1].revents};
  const bool open = left[0] != 0 || left[1] != 0;
  // Only a long sleep need be ended by connections that do.
  const bool sleeps = longest > options_.heartbeat;
  const auto began = Clock::now();
  static_cast<void>(::poll(polled_.data(),
                           sleeps ? polled_.size() : kLines,
                           open ? 0 : static_cast<int>(longest.count())));
  if (sleeps) next_look_ = began;
  if (polled_[2].revents != 0) take_commands();
  polled_[0].revents = (polled_[0].revents | left[0]) != 0 && read_data() ? POLLIN : 0;
  polled_[1].revents = (polled_[1].revents | left[1]) != 0 && read_control() ? POLLIN : 0;
  const auto now = Clock::now();
  acknowledge(now);
  // To a process that was stopped, or waited for a core, every rank is silent: that proves nothing.
  const auto late = std::max(began - last_tick_, now - began - longest);
  if (late > kLate) monitor_.suspended(late);
  tick(now);
}

void SocketLoop::acknowledge(Clock::time_point now) {
  for (const auto& peer : peers_) {
    if (!peer) continue;
    if (now >= peer->tell_at || peer->unacknowledged >= kFramesPerAck ||
        peer->unacknowledged_bytes >= kBytesPerAck)
      acknowledge(*peer);
    peer->out.sweep();
  }
}

void SocketLoop::take_commands() {
  std::uint64_t ignored = 0;
  static_cast<void>(::read(wake_.number(), &ignored, sizeof ignored));
  std::vector<Command> commands;
  {
    const std::lock_guard lock(mutex_);
    commands.swap(commands_);
  }
  for (Command& command : commands) std::visit([&](auto& order) { handle(order); }, command);
}

void SocketLoop::handle(Outgoing& message) {
  Peer& peer = *peers_[message.to.index()];
  if (stopped_ || peer.left) return;
  if (peer.out.settled()) {
    peer.probe_interval = options_.probe_after;
    peer.next_probe = Clock::now() + peer.probe_interval;
  }
  DataHeader header;
  static_cast<Envelope&>(header) = envelope_to(peer);
  header.tag = message.tag;
  for_each_frame(header, message.tensors, message.hashes, [&](DataHeader each, Tensor tensor) {
    each.lead = can_lead(tensor) ? peer.lead : 0;
    transmit(peer, peer.out.add(each, std::move(tensor)));
  });
}

void SocketLoop::handle(const Question& question) {
  if (question.to == options_.rank) return;  // only a wake-up
  Peer& peer = *peers_[question.to.index()];
  peer.question = question.number;
  probe(peer);
}

void SocketLoop::handle(const Credit& credit) {
  acknowledge(*peers_[credit.to.index()]);
}

void SocketLoop::handle(const Failure& failure) {
  if (stopped_) return;
  stopped_ = failure;
  shout(failure);
}

void SocketLoop::handle(const Leave&) {
  leaving_ = true;
  leave_when_settled(Clock::now());
}

}  // namespace millrace::zeromq
