// What the endpoints of one process share: per receiving rank a mutex, a condition and one queue
// per channel; which ranks are there; and the messages of their rendezvous.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "millrace/core/error.hpp"
#include "millrace/transport/listener.hpp"
#include "transport/mailbox/message_queue.hpp"

namespace millrace::in_process {

/// What is on its way to one rank.
struct Arrivals {
  std::mutex mutex;  // guards channels; taken alone, never with another mutex
  std::condition_variable_any changed;
  std::vector<std::array<MessageQueue, 3>> channels;  // [source rank][direction]
};

enum class Presence : std::uint8_t { Here, Left, Lost };

inline std::size_t index_of(Direction direction) {
  return static_cast<std::size_t>(direction);
}

/// What the ranks of one process share.
struct Hub {
  explicit Hub(int size)
      : world(size),
        arrivals(static_cast<std::size_t>(size)),
        presence(static_cast<std::size_t>(size)),
        taken(static_cast<std::size_t>(size), false) {
    for (Arrivals& each : arrivals) each.channels.resize(static_cast<std::size_t>(size));
  }

  void require_rank(Rank rank, const char* what) const {
    require(rank.value >= 0 && rank.value < world, [&] {
      return std::string(what) + " is rank " + std::to_string(rank.value) +
             "; the world has ranks 0 to " + std::to_string(world - 1);
    });
  }

  /// Wakes every wait. The lock makes sure that a waiter is either asleep or has yet to look.
  void wake_all() noexcept {
    for (Arrivals& each : arrivals) {
      { const std::lock_guard lock(each.mutex); }
      each.changed.notify_all();
    }
  }

  void set_presence(Rank rank, Presence now) noexcept {
    presence[rank.index()].store(now);
    wake_all();
  }

  void cancel(const std::string& why) noexcept {
    {
      const std::lock_guard lock(reason_mutex);
      if (cancelled.load()) return;
      try {
        reason = why;
      } catch (...) {
        reason.clear();
      }
      cancelled.store(true);
    }
    wake_all();
  }

  [[nodiscard]] std::string reason_of_cancel() {
    const std::lock_guard lock(reason_mutex);
    return reason;
  }

  const int world;
  std::vector<Arrivals> arrivals;               // by receiving rank
  std::vector<std::atomic<Presence>> presence;  // by rank
  std::vector<bool> taken;                      // by rank
  std::atomic<bool> cancelled = false;
  std::mutex reason_mutex;  // guards reason; taken alone
  std::string reason;
  std::mutex notes_mutex;  // guards notes; taken alone
  std::condition_variable noted;
  std::map<std::pair<std::string, Rank>, std::deque<RendezvousMessage>>
      notes;  // by place and receiver
};

[[nodiscard]] std::unique_ptr<Endpoint> make_endpoint(std::shared_ptr<Hub> hub, Rank rank);

/// See Listener::rendezvous_channel: a queue per url and receiver; any text is a url.
[[nodiscard]] std::unique_ptr<RendezvousChannel> make_rendezvous_channel(std::shared_ptr<Hub> hub,
                                                                         Rank rank,
                                                                         const std::string& url);

}  // namespace millrace::in_process
