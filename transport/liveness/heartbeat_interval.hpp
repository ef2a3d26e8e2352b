// How often ranks send heartbeats, and to which. Every rank watches every other, so in a large
// world intervals are longer, and longer still where nothing changes: the cost stays.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

#include "millrace/core/ids.hpp"

namespace millrace {

/// Thread-safety: immutable, share freely.
class HeartbeatInterval {
 public:
  using Duration = std::chrono::steady_clock::duration;

  /// Peers that get a heartbeat at once.
  static constexpr int kTogether = 8;
  /// After this time in one action its rank sends fewer heartbeats.
  static constexpr std::chrono::seconds kSettled{1};

  HeartbeatInterval(int world, Duration heartbeat, Duration timeout)
      : groups_(std::max(1, (world - 1 + kTogether - 1) / kTogether)),
        quick_(heartbeat),
        slow_(std::max<Duration>(heartbeat, std::min<Duration>(kSlowRound, timeout / 8) / groups_)),
        timeout_(std::max<Duration>(timeout, 4 * groups_ * slow_)) {}

  /// Time between two groups of peers, for a rank that has done the same for `unchanged`.
  [[nodiscard]] Duration interval(Duration unchanged) const {
    return unchanged > kSettled ? slow_ : quick_;
  }

  /// The heartbeat timeout: as asked for, at least four rounds through all peers.
  [[nodiscard]] Duration timeout() const { return timeout_; }

 private:
  static constexpr std::chrono::seconds kSlowRound{1};

  int groups_;
  Duration quick_;
  Duration slow_;
  Duration timeout_;
};

inline constexpr int kSmallWorld = 17;

/// The ranks that `self` watches from the beginning, nearest first. A watched rank watches
/// back.
[[nodiscard]] inline std::vector<Rank> watched_by(Rank self, int world) {
  std::vector<Rank> ranks;
  const auto add = [&](int distance) {
    const Rank rank{(self.value + distance) % world};
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
  };
  const auto next = [&](int distance) { return world > kSmallWorld ? 2 * distance : distance + 1; };
  for (int distance = 1; distance < world; distance = next(distance)) {
    add(distance);
    add(world - distance);
  }
  return ranks;
}

}  // namespace millrace
