// What a rank concludes about the others, the same over all backends: which rank is silent, hangs
// or is lost, with the report of all ranks.
#pragma once

#include <functional>
#include <optional>

#include "millrace/transport/listener.hpp"
#include "transport/liveness/monitor.hpp"
#include "transport/liveness/progress_slot.hpp"
#include "transport/mailbox/mailbox.hpp"

namespace millrace {

/// Thread-safety: externally synchronised.
class Watch {
 public:
  using Clock = LivenessMonitor::Clock;

  /// What another rank of this host does, newer than its heartbeats, and when it was alive for
  /// certain.
  struct News {
    Activity activity;
    Clock::time_point at;
  };
  /// Reads it; nothing where it cannot be read.
  using File = std::function<std::optional<News>(Rank, Clock::time_point now)>;

  /// `slot` is this rank's, and must outlive this. A rank without a heartbeat for longer than
  /// `heartbeat_timeout` is silent.
  Watch(const LinkOptions& options,
        Clock::duration heartbeat_timeout,
        const ProgressSlot& slot,
        File file);

  [[nodiscard]] LivenessMonitor& monitor() { return monitor_; }

  /// Notes what `rank` does at this moment, where that can be known.
  void confirm(Rank rank, Clock::time_point now);

  /// The failure that a silent or hanging rank is.
  [[nodiscard]] std::optional<Failure> judge(Clock::time_point now);

  /// That of a lost rank: "lost rank 1: `why`; everyone waits for ...".
  [[nodiscard]] Failure lost(Rank rank, const char* why, Clock::time_point now);

 private:
  void look_around(Clock::time_point now);
  [[nodiscard]] std::string report(Rank culprit, Clock::time_point now);

  const Rank self_;
  const int world_;
  const Clock::duration heartbeat_timeout_;
  const LivenessMonitor::Floor action_timeout_;
  const ProgressSlot& slot_;
  const File file_;
  LivenessMonitor monitor_;
};

}  // namespace millrace
