// What the rank's calls and the thread that has the turn with the sockets share: arrived messages,
// room in the channels, and the failure that ends everything. Nothing here waits.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "millrace/transport/endpoint.hpp"
#include "transport/mailbox/message_queue.hpp"

namespace millrace {

/// What ends an epoch.
struct Failure {
  FailureCause cause = FailureCause::Cancelled;
  std::string text;
};

/// Thread-safety: internally synchronised; "rank" marks calls of the rank's thread, "loop" those
/// of the thread that has the turn with the sockets.
class Mailbox {
 public:
  /// `news`, where there is one, is called with anything that may end a wait.
  Mailbox(Rank self,
          int world,
          std::span<const ChannelDepth> depths,
          std::function<void()> news = {});

  /// Rank: the message, if it has come. Throws as Endpoint::receive when it never will.
  std::optional<TensorList> take(Rank from, const MessageTag& tag);

  /// Rank: takes one place in the channel. False when it looks full, but the receiver has to be
  /// asked (ask_room) before that is certain.
  bool try_room(Rank to, Direction direction);
  /// Rank: number of a question to `to`, to be sent as a probe.
  std::uint64_t next_question(Rank to);
  /// Rank: true when the place is taken after all; throws TransportError when the question is
  /// answered and there is still none.
  bool try_room_after(Rank to, Direction direction, std::uint64_t question);

  /// Rank: true when the loop has said that everything has landed.
  bool settled();

  /// SocketLoop: puts a message in. False when the tag is there already or the channel is too full:
  /// the sender broke the contract.
  bool deliver(Rank from, const MessageTag& tag, TensorList message);
  /// SocketLoop: what was taken of `from`'s messages.
  TakenCounts taken(Rank from);
  /// SocketLoop: what `from` has taken of ours.
  void credit(Rank from, const TakenCounts& taken);
  /// SocketLoop: what `from` said last was said after `question` came.
  void answer(Rank from, std::uint64_t question);
  void leave(Rank rank);
  void settle();

  /// Any thread: the first failure wins and ends all waits. True for the first.
  bool fail(FailureCause cause, const std::string& text) noexcept;
  void throw_if_failed();

  /// True when enough was taken from `from` that its sender needs a credit, and does not learn
  /// it from the frames that it gets anyway.
  bool owes_credit(Rank from, Direction direction);

 private:
  struct Outbound {
    int depth = 0;  // 0: unbounded
    std::uint64_t sent = 0;
    std::uint64_t taken = 0;
  };

  struct Inbound {
    MessageQueue arrived;
    bool answered = false;
    std::uint64_t taken = 0;
    std::uint64_t reported = 0;
  };

  struct Peer {
    std::array<Outbound, 3> out;
    std::array<Inbound, 3> in;
    std::uint64_t asked = 0;
    std::uint64_t answered = 0;
    bool left = false;
  };

  Peer& peer(Rank rank) { return peers_[rank.index()]; }
  void set_depth(const ChannelDepth& channel);
  void throw_failure() const;
  void notify() const {
    if (news_) news_();
  }

  const Rank self_;
  const std::function<void()> news_;
  std::mutex mutex_;  // guards everything below
  std::vector<Peer> peers_;
  std::optional<Failure> failure_;
  bool settled_ = false;
};

}  // namespace millrace
