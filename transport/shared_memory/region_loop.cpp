// Whose turn it is, what happens in a turn, and how a rank sleeps.
#include "transport/shared_memory/region_loop.hpp"

#include <cerrno>
#include <new>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>

#include "millrace/transport/listener.hpp"
#include "transport/link/endpoint.hpp"
#include "transport/liveness/heartbeat_interval.hpp"
#include "transport/shared_memory/backend.hpp"

namespace millrace::shared_memory {

using namespace std::chrono_literals;

namespace {

constexpr auto kSpin = 200us;  // 1 MiB is written, summed and read in so long
/// After this number of looks that found nothing, one in as many is tried.
constexpr int kMostInVain = 16;
/// With something to write for which there is no room, or a shutdown message to send.
constexpr auto kImpatience = 10ms;
constexpr auto kLookInterval = 25ms;
/// Turns that come later than planned by more than this: this process was not running.
constexpr auto kLate = 100ms;
constexpr std::size_t kEventsAtOnce = 32;

int cores_of_this_process() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return ::sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

std::chrono::nanoseconds spin_of(const SharedMemoryOptions& options) {
  if (options.spin) return *options.spin;
  return options.world <= cores_of_this_process() ? kSpin : 0us;
}

void breathe() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

template <class Content>
void make_own(Own<Content>& own) {
  Region region = make_region(sizeof(Content), Sharing::Read);
  own.content = new (region.memory.data()) Content{};
  own.file = std::move(region.file);
  own.memory = std::move(region.memory);
}

}  // namespace

ListeningSocket::ListeningSocket(std::string path, int backlog)
    : path_(std::move(path)), socket_(listen_at(path_, backlog)) {}

ListeningSocket& ListeningSocket::operator=(ListeningSocket&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(socket_, other.socket_);
  return *this;
}

ListeningSocket::~ListeningSocket() {
  if (socket_ && !path_.starts_with(kNameless)) ::unlink(path_.c_str());
}

RegionLoop::RegionLoop(const SharedMemoryOptions& options,
                       Mailbox& mailbox,
                       const ProgressSlot& slot,
                       ListeningSocket socket,
                       std::vector<std::string> sockets,
                       std::optional<Carrying> carrying)
    : options_(options),
      mailbox_(mailbox),
      slot_(slot),
      socket_(std::move(socket)),
      carrying_(std::move(carrying)),
      bell_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      events_(::epoll_create1(EPOLL_CLOEXEC)),
      watch_(options,
             options.heartbeat_timeout,
             slot,
             [this](Rank rank, Clock::time_point) { return news_of(rank); }),
      spin_(spin_of(options)),
      due_(Clock::now() + options.heartbeat),
      next_look_(Clock::now()) {
  if (!bell_ || !events_) refuse("wait for shared memory");
  make_own(board_);
  watch_descriptor(bell_.number(), EventKind::Bell, {});
  if (socket_.number() >= 0) watch_descriptor(socket_.number(), EventKind::Listener, {});
  for (int i = 0; i < options.world; ++i) {
    const bool other = Rank{i} != options.rank;
    auto& path = sockets[static_cast<std::size_t>(i)];
    neighbours_.push_back(other ? std::make_unique<Neighbour>(Rank{i}, std::move(path)) : nullptr);
    if (!other) continue;
    neighbours_.back()->progress_file = file_of_rank(options, Rank{i}, "progress");
    monitor_.excuse(Rank{i});
  }
  for (const ChannelDepth& channel : options.depths) {
    if (channel.source != options.rank || channel.destination == options.rank) continue;
    auto& planned = neighbours_.at(channel.destination.index())->planned;
    planned.insert(planned.end(), channel.tensors.begin(), channel.tensors.end());
  }
  guarded([&] {
    for (const Rank rank : watched_by(options.rank, options.world)) {
      if (!carrying_) monitor_.expect(rank);
      if (may_share(rank)) static_cast<void>(dialled(rank));
    }
  });
  thread_ = std::jthread([this] { run(); });
}

RegionLoop::~RegionLoop() {
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
  }
  woken_.notify_all();
  thread_.join();
  take_turn();  // who cancelled last is heard
}

void RegionLoop::watch_descriptor(int descriptor, EventKind kind, Rank rank) {
  epoll_event event{};
  event.events = kind == EventKind::To ? EPOLLRDHUP : EPOLLIN | EPOLLRDHUP;
  event.data.u64 = pack({kind, rank});
  if (::epoll_ctl(events_.number(), EPOLL_CTL_ADD, descriptor, &event) != 0)
    refuse("wait for shared memory");
}

void RegionLoop::stop(const Failure& failure) noexcept {
  {
    const std::lock_guard lock(mutex_);
    asked_to_stop_ = failure;
  }
  called_ = true;
  woken_.notify_all();
  wake(bell_.number());
}

/// The progress thread: a turn whenever the rank takes none itself.
void RegionLoop::run() noexcept {
  auto pause = options_.heartbeat;
  std::unique_lock lock(mutex_);
  while (!end_) {
    woken_.wait_for(lock, pause, [&] { return end_ || called_; });
    lock.unlock();
    std::unique_lock turn(turn_, std::defer_lock);
    if (called_) turn.lock();
    // A rank that has the turn does all this itself.
    if (turn.owns_lock() || turn.try_lock()) {
      take_turn();
      pause = std::min(options_.heartbeat, longest_rest());
      turn.unlock();
    }
    lock.lock();
  }
}

void RegionLoop::take_turn() noexcept {
  guarded([&] {
    if (called_.exchange(false)) {
      const std::lock_guard lock(mutex_);
      if (asked_to_stop_ && !stopped_) {
        stopped_ = asked_to_stop_;
        shout(*stopped_);
      }
    }
    for (Neighbour* each : known_) sweep(*each);
    const auto now = Clock::now();
    if (now >= next_look_) take_events(0);
    tick();
  });
}

/// How long nothing needs to be done unless something happens.
std::chrono::milliseconds RegionLoop::longest_rest() const {
  const bool waits = std::any_of(
      known_.begin(), known_.end(), [](const Neighbour* each) { return !each->waiting.empty(); });
  if (leaving_ || waits)
    return std::min<std::chrono::milliseconds>(kImpatience, options_.heartbeat);
  const auto now = Clock::now();
  if (now - slot_.now().since <= HeartbeatInterval::kSettled) return options_.heartbeat;
  const Clock::duration longest =
      std::min<Clock::duration>({1s,
                                 options_.heartbeat_timeout / 8,
                                 monitor_.until_next_limit(now, options_.action_timeout)});
  return std::max(options_.heartbeat, std::chrono::ceil<std::chrono::milliseconds>(longest));
}

/// Sleeps until something happens, at most so long.
void RegionLoop::rest(Clock::duration longest) noexcept {
  guarded([&] {
    if (look_for_news(longest)) return;
    const auto pause = longest_rest();
    const auto most = std::min(pause, std::chrono::ceil<std::chrono::milliseconds>(longest));
    due_ = Clock::now() + most;
    const bool needs_room = pause < options_.heartbeat || leaving_;
    board_.content->asleep.store(needs_room ? Sleep::ForRoom : Sleep::ForFrames);
    if (!has_news()) take_events(static_cast<int>(most.count()));
    board_.content->asleep.store(Sleep::Awake);
  });
}

/// A message that comes at once costs no sleep; where none does, cores have better to do.
bool RegionLoop::look_for_news(Clock::duration longest) {
  if (spin_ == Clock::duration::zero()) return has_news();
  if (spun_in_vain_ > kMostInVain && ++spun_in_vain_ % kMostInVain != 0) return has_news();
  const auto end = Clock::now() + std::min(spin_, longest);
  do {
    if (has_news()) {
      spun_in_vain_ = 0;
      return true;
    }
    breathe();
  } while (Clock::now() < end);
  ++spun_in_vain_;
  return false;
}

bool RegionLoop::has_news() const {
  if (called_) return true;
  return std::any_of(known_.begin(), known_.end(), [&](const Neighbour* each) {
    if (!each->reader || each->gone || stopped_) return false;
    const bool waits = leaving_ || !each->waiting.empty();
    const bool says = !carrying_ && (each->board.content->stop != 0 ||
                                     (!each->left && each->board.content->left != 0));
    return each->reader->has_news() || says ||
           (waits && each->writer->consumed() != each->inbox.content->consumed);
  });
}

void RegionLoop::take_events(int timeout_ms) {
  std::array<epoll_event, kEventsAtOnce> events{};
  const int count =
      ::epoll_wait(events_.number(), events.data(), static_cast<int>(events.size()), timeout_ms);
  next_look_ = Clock::now() + std::min<Clock::duration>(options_.heartbeat / 4, kLookInterval);
  for (int i = 0; i < count; ++i) take_event(unpack(events[static_cast<std::size_t>(i)].data.u64));
}

void RegionLoop::take_event(const Event& event) {
  switch (event.kind) {
    case EventKind::Bell:
      return quiet(bell_.number());
    case EventKind::Listener:
    case EventKind::Guest:
      return accept_guests();
    case EventKind::From:
    case EventKind::To:
    case EventKind::Process:
      break;
  }
  Neighbour& peer = *neighbours_[event.rank.index()];
  if (peer.gone) return;
  if (event.kind != EventKind::From || !read_segments(peer)) hung_up(peer);
}

void RegionLoop::ring_bell(const Neighbour& to, Sleep least) const {
  if (to.bell && to.board.content->asleep.load() >= least) wake(to.bell.number());
}

void RegionLoop::ring_all_bells() const {
  for (const Neighbour* each : known_) ring_bell(*each, Sleep::ForFrames);
}

void RegionLoop::broke(const std::exception& error) {
  fail(FailureCause::Protocol, broken_link(options_.rank, error));
}

/// Makes sure that the rank knows us; it will introduce itself in its turn.
RegionLoop::Neighbour& RegionLoop::dialled(Rank rank) {
  Neighbour& to = *neighbours_[rank.index()];
  if (to.send_queue || to.gone) return to;
  to.send_queue = std::make_shared<OwnSendQueue>();
  make_own(*to.send_queue);
  to.writer.emplace(to.send_queue->content->ring);
  known_.push_back(&to);
  to.to = connect_to(to.socket_path);
  const DescriptorMessage message{DescriptorMessageKind::Introduction,
                                  options_.epoch,
                                  options_.job,
                                  options_.rank.value,
                                  rank.value,
                                  0,
                                  0,
                                  kProtocolVersion};
  if (!to.to ||
      !send_message(to.to.number(),
                    message,
                    {board_.file.number(), to.send_queue->file.number(), bell_.number()})) {
    hung_up(to);
    return to;
  }
  to.send_queue->file = {};
  watch_descriptor(to.to.number(), EventKind::To, rank);
  const std::size_t all = carrying_ ? carrying_->between.size() : neighbours_.size() - 1;
  if (known_.size() == all) board_.file = {};  // every rank has it
  return to;
}

void RegionLoop::tick() {
  const auto now = Clock::now();
  if (now - due_ > kLate) monitor_.suspended(now - due_);
  due_ = now + options_.heartbeat;
  board_.content->beat.store(static_cast<std::uint64_t>(now.time_since_epoch().count()),
                             std::memory_order_relaxed);
  if (leaving_) leave_when_settled();
  if (stopped_ || carrying_ || now < next_watch_) return;
  next_watch_ = next_look_;
  watch(now);
}

void RegionLoop::send(Rank to, const MessageTag& tag, TensorList payload) noexcept {
  const std::lock_guard lock(turn_);
  guarded([&] {
    if (stopped_) return;
    Neighbour& peer = dialled(to);
    if (!peer.reader) take_events(0);  // its memory is ours to write again only once we know it
    DataHeader header;
    header.job = options_.job;
    header.epoch = options_.epoch;
    header.source = options_.rank;
    header.destination = to;
    header.tag = tag;
    for_each_frame(header, payload, {}, [&](const DataHeader& each, Tensor tensor) {
      if (peer.spare.empty()) peer.spare.emplace_back();
      peer.waiting.splice(peer.waiting.end(), peer.spare, peer.spare.begin());
      peer.waiting.back() = {each, std::move(tensor)};
    });
    flush(peer);
  });
}

void RegionLoop::learn_room(Rank to) noexcept {
  const std::lock_guard lock(turn_);
  guarded([&] {
    take_events(0);
    const Neighbour& peer = *neighbours_[to.index()];
    if (!peer.reader) return;  // who does not know us yet has taken nothing
    TakenCounts taken{};
    for (std::size_t way = 0; way < taken.size(); ++way)
      taken[way] = peer.inbox.content->taken[way].load(std::memory_order_acquire);
    mailbox_.credit(to, taken);
  });
}

void RegionLoop::acknowledge_taken(Rank from, Direction /*direction*/) noexcept {
  const TakenCounts taken = mailbox_.taken(from);
  SendQueue& send_queue = *neighbours_[from.index()]->send_queue->content;
  for (std::size_t way = 0; way < taken.size(); ++way)
    send_queue.taken[way].store(taken[way], std::memory_order_release);
}

std::vector<SharedBytes> RegionLoop::shared_bytes() const {
  const std::lock_guard lock(turn_);
  std::vector<SharedBytes> bytes;
  for (const Neighbour* each : known_)
    bytes.push_back({each->rank,
                     each->slots.bytes(Payloads::OfPasses),
                     each->slots.bytes(Payloads::OfCollectives)});
  return bytes;
}

bool RegionLoop::leave(Deadline /*deadline*/) noexcept {
  const std::lock_guard lock(turn_);
  guarded([&] {
    leaving_ = true;
    leave_when_settled();
  });
  return true;
}

}  // namespace millrace::shared_memory
