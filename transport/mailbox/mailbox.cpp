#include "transport/mailbox/mailbox.hpp"

#include <utility>

#include "transport/mailbox/rank_words.hpp"

namespace millrace {

namespace {

const char* name_of(Direction direction) {
  if (direction == Direction::Forward) return "forward";
  return direction == Direction::Backward ? "backward" : "collective";
}

std::size_t index_of(Direction direction) {
  return static_cast<std::size_t>(direction);
}

}  // namespace

Mailbox::Mailbox(Rank self,
                 int world,
                 std::span<const ChannelDepth> depths,
                 std::function<void()> news)
    : self_(self), news_(std::move(news)), peers_(static_cast<std::size_t>(world)) {
  for (const ChannelDepth& channel : depths) set_depth(channel);
}

void Mailbox::set_depth(const ChannelDepth& channel) {
  const auto inside = [&](Rank rank) { return rank.value >= 0 && rank.index() < peers_.size(); };
  require(channel.depth >= 1, "a channel's depth is at least 1");
  require(inside(channel.source) && inside(channel.destination),
          "a channel names a rank outside the world");
  const std::size_t way = index_of(channel.direction);
  if (channel.source == self_) peer(channel.destination).out[way].depth = channel.depth;
  if (channel.destination != self_) return;
  Inbound& inbound = peer(channel.source).in[way];
  inbound.arrived.set_depth(channel.depth);
  inbound.answered = channel.answered;
}

void Mailbox::throw_failure() const {
  switch (failure_->cause) {
    case FailureCause::Cancelled:
      throw Cancelled(failure_->text);
    case FailureCause::PeerLost:
      throw PeerLost(failure_->text);
    case FailureCause::Hang:
      throw PeerHangs(failure_->text);
    case FailureCause::Protocol:
      throw TransportError(failure_->text);
  }
}

void Mailbox::throw_if_failed() {
  const std::lock_guard lock(mutex_);
  if (failure_) throw_failure();
}

bool Mailbox::fail(FailureCause cause, const std::string& text) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return false;
    failure_ = Failure{cause, text};
  }
  notify();
  return true;
}

std::optional<TensorList> Mailbox::take(Rank from, const MessageTag& tag) {
  const std::lock_guard lock(mutex_);
  if (failure_) throw_failure();
  Peer& source = peer(from);
  Inbound& channel = source.in[index_of(tag.direction)];
  auto message = channel.arrived.take(tag);
  if (message)
    ++channel.taken;
  else if (source.left)
    throw PeerLost(words_of(from) + " left before the " + to_string(tag) + " came");
  return message;
}

bool Mailbox::try_room(Rank to, Direction direction) {
  const std::lock_guard lock(mutex_);
  if (failure_) throw_failure();
  if (peer(to).left) throw PeerLost(words_of(to) + " has left; nothing can be sent to it");
  Outbound& channel = peer(to).out[index_of(direction)];
  const bool room =
      channel.depth == 0 || channel.sent - channel.taken < static_cast<unsigned>(channel.depth);
  if (room) ++channel.sent;
  return room;
}

std::uint64_t Mailbox::next_question(Rank to) {
  const std::lock_guard lock(mutex_);
  return ++peer(to).asked;
}

bool Mailbox::try_room_after(Rank to, Direction direction, std::uint64_t question) {
  const std::lock_guard lock(mutex_);
  if (failure_) throw_failure();
  Peer& receiver = peer(to);
  Outbound& channel = receiver.out[index_of(direction)];
  if (channel.sent - channel.taken < static_cast<unsigned>(channel.depth)) {
    ++channel.sent;
    return true;
  }
  if (receiver.answered >= question || receiver.left)
    throw TransportError(std::string("the ") + name_of(direction) + " channel from " +
                         words_of(self_) + " to " + words_of(to) + " holds " +
                         std::to_string(channel.depth) +
                         " messages, its declared depth; one more does not fit");
  return false;
}

bool Mailbox::settled() {
  const std::lock_guard lock(mutex_);
  if (failure_) throw_failure();
  return settled_;
}

bool Mailbox::deliver(Rank from, const MessageTag& tag, TensorList message) {
  {
    const std::lock_guard lock(mutex_);
    MessageQueue& arrived = peer(from).in[index_of(tag.direction)].arrived;
    if (arrived.is_full() || arrived.contains(tag)) return false;
    arrived.put(tag, std::move(message));
  }
  notify();
  return true;
}

TakenCounts Mailbox::taken(Rank from) {
  const std::lock_guard lock(mutex_);
  TakenCounts counts{};
  for (std::size_t way = 0; way < counts.size(); ++way) {
    Inbound& channel = peer(from).in[way];
    channel.reported = counts[way] = channel.taken;
  }
  return counts;
}

bool Mailbox::owes_credit(Rank from, Direction direction) {
  const std::lock_guard lock(mutex_);
  const Inbound& channel = peer(from).in[index_of(direction)];
  const int depth = channel.arrived.depth();
  return depth != MessageQueue::kUnbounded && !channel.answered &&
         2 * (channel.taken - channel.reported) >= static_cast<unsigned>(depth);
}

void Mailbox::credit(Rank from, const TakenCounts& taken) {
  const std::lock_guard lock(mutex_);
  Peer& receiver = peer(from);
  for (std::size_t way = 0; way < taken.size(); ++way) {
    Outbound& channel = receiver.out[way];
    if (taken[way] > channel.taken && taken[way] <= channel.sent) channel.taken = taken[way];
  }
}

void Mailbox::answer(Rank from, std::uint64_t question) {
  {
    const std::lock_guard lock(mutex_);
    Peer& sender = peer(from);
    if (question > sender.answered && question <= sender.asked) sender.answered = question;
  }
  notify();
}

void Mailbox::leave(Rank rank) {
  {
    const std::lock_guard lock(mutex_);
    peer(rank).left = true;
  }
  notify();
}

void Mailbox::settle() {
  {
    const std::lock_guard lock(mutex_);
    settled_ = true;
  }
  notify();
}

}  // namespace millrace
