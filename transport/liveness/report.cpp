// The monitor's words: who waits for whom, and the block that every survivor of a failure prints.
#include <algorithm>
#include <array>
#include <cstdio>

#include "transport/liveness/monitor.hpp"
#include "transport/mailbox/rank_words.hpp"

namespace millrace {

namespace {

std::string seconds(LivenessMonitor::Clock::duration time) {
  std::array<char, 32> text{};
  std::snprintf(text.data(),
                text.size(),
                "%.1f s",
                std::max(0.0, std::chrono::duration<double>(time).count()));
  return text.data();
}

}  // namespace

std::optional<Rank> LivenessMonitor::waits_for(Rank rank) const {
  const Activity& activity = line(rank).activity;
  const int peer = activity.peer.value;
  if (activity.doing != Doing::Waits || peer < 0 || peer >= static_cast<int>(lines_.size()))
    return std::nullopt;
  return activity.peer;
}

Rank LivenessMonitor::end_of_chain(Rank rank) const {
  std::vector<bool> met(lines_.size(), false);
  while (!met[rank.index()]) {
    met[rank.index()] = true;
    const auto next = waits_for(rank);
    if (!next) return rank;
    rank = *next;
  }
  return rank;
}

/// " (data-parallel replica 2)", where there are several.
std::string LivenessMonitor::replica_of(Rank rank) const {
  const int pipeline = line(self_).activity.pipeline;
  if (pipeline == 0) return {};
  return " (data-parallel replica " + std::to_string(rank.value / pipeline) + ")";
}

std::string LivenessMonitor::chain(Rank rank) const {
  const auto direct = waits_for(rank);
  if (!direct || !waits_for(*direct)) return {};
  std::string text = " (" + words_of(rank);
  std::vector<bool> met(lines_.size(), false);
  for (auto next = direct; next && !met[rank.index()]; next = waits_for(rank)) {
    met[rank.index()] = true;
    rank = *next;
    text += " <- " + std::to_string(rank.value);
  }
  return text + ")";
}

std::string LivenessMonitor::describe(Rank rank, Clock::time_point now) const {
  const Line& at = line(rank);
  if (!at.expected && at.activity.count == 0) return words_of(rank) + " is not watched from here";
  std::string text = words_of(rank) + " " + to_string(at.activity);
  if (at.left) return text;
  text += replica_of(rank) + ", since " + seconds(now - at.activity.since);
  if (rank != self_) text += ", last heard " + seconds(now - at.heard) + " ago";
  return text + chain(rank);
}

std::string LivenessMonitor::report(Rank culprit, Clock::time_point now) const {
  const Activity& activity = line(culprit).activity;
  std::string text = "everyone waits for " + words_of(culprit) + ": " + action_of(activity) +
                     replica_of(culprit) + ", since " + seconds(now - activity.since);
  for (int i = 0; i < static_cast<int>(lines_.size()); ++i) text += "\n  " + describe(Rank{i}, now);
  return text;
}

}  // namespace millrace
