// How often ranks tell each other what they do. Everybody watches everybody, so in a large world
// each is told more seldom, and where nothing changes there is little to tell: the cost stays.
#pragma once

#include <algorithm>
#include <chrono>

namespace millrace {

/// Thread-safety: immutable, share freely.
class HeartbeatInterval {
 public:
  using Duration = std::chrono::steady_clock::duration;

  /// Peers that are told at once.
  static constexpr int kTogether = 8;
  /// After so long in one action its rank tells of it less often.
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

}  // namespace millrace
