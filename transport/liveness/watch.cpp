#include "transport/liveness/watch.hpp"

#include <fmt/format.h>
#include <utility>

namespace millrace {

Watch::Watch(const LinkOptions& options,
             Clock::duration heartbeat_timeout,
             const ProgressSlot& slot,
             File file)
    : self_(options.rank),
      world_(options.world),
      heartbeat_timeout_(heartbeat_timeout),
      action_timeout_(options.action_timeout),
      slot_(slot),
      file_(std::move(file)),
      monitor_(options.rank, options.world, Clock::now()) {}

void Watch::confirm(Rank rank, Clock::time_point now) {
  if (rank == self_) return monitor_.note(rank, slot_.now(), now);
  if (!file_) return;
  if (const auto news = file_(rank, now)) monitor_.note(rank, news->activity, news->at);
}

void Watch::look_around(Clock::time_point now) {
  for (int i = 0; i < world_; ++i)
    if (!monitor_.has_left(Rank{i})) confirm(Rank{i}, now);
}

std::string Watch::report(Rank culprit, Clock::time_point now) {
  look_around(now);
  return monitor_.report(culprit, now);
}

std::optional<Failure> Watch::judge(Clock::time_point now) {
  confirm(self_, now);
  if (monitor_.silent(now, heartbeat_timeout_)) {
    look_around(now);  // of several silent ranks, the news show which one the others wait for
    if (const auto silent = monitor_.silent(now, heartbeat_timeout_))
      return Failure{FailureCause::Hang,
                     fmt::format("rank {} is silent; {}", silent->value, report(*silent, now))};
  }
  for (const Rank rank : monitor_.overdue(now, action_timeout_)) confirm(rank, now);
  const auto hanging = monitor_.hanging(now, action_timeout_);
  if (!hanging) return std::nullopt;
  return Failure{
      FailureCause::Hang,
      fmt::format(
          "rank {} is alive but makes no progress; {}", hanging->value, report(*hanging, now))};
}

Failure Watch::lost(Rank rank, const char* why, Clock::time_point now) {
  return {FailureCause::PeerLost,
          fmt::format("lost rank {}: {}; {}", rank.value, why, report(rank, now))};
}

}  // namespace millrace
