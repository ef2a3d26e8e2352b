// Time: signs of life, hanging peers, and the goodbye. Reports say the same as those of ranks that
// talk over sockets; what a rank does is read from its file.
#include <algorithm>

#include "transport/shared_memory/region_loop.hpp"

namespace millrace::shared_memory {

namespace {

/// Files that are read in one look; in a larger world it takes several.
constexpr std::size_t kFilesAtOnce = 8;

}  // namespace

void RegionLoop::confirm(Rank rank, Clock::time_point now) {
  if (rank == options_.rank) return monitor_.note(rank, slot_.now(), now);
  const auto activity = ProgressSlot::of(neighbours_[rank.index()]->progress_file);
  // Who is stopped says nothing, whatever its file holds: it is silent, and does not hang.
  if (activity) monitor_.note(rank, *activity, neighbours_[rank.index()]->alive_at);
}

void RegionLoop::look_around(Clock::time_point now) {
  for (int i = 0; i < options_.world; ++i)
    if (Rank{i} == options_.rank || !neighbours_[static_cast<std::size_t>(i)]->left)
      confirm(Rank{i}, now);
}

std::string RegionLoop::report(Rank culprit, Clock::time_point now) {
  look_around(now);
  return monitor_.report(culprit, now);
}

void RegionLoop::watch(Clock::time_point now) {
  confirm(options_.rank, now);
  for (Neighbour* each : known_) {
    if (!each->reader || each->gone) continue;
    const std::uint64_t beat = each->board.content->beat.load(std::memory_order_relaxed);
    if (std::exchange(each->beat, beat) == beat) continue;
    each->alive_at = now;
    monitor_.heard(each->rank, now);
  }
  for (std::size_t i = 0; i < std::min(kFilesAtOnce, known_.size()); ++i) {
    const Neighbour& each = *known_[next_confirmed_++ % known_.size()];
    if (!each.left && !each.gone) confirm(each.rank, now);
  }
  if (monitor_.silent(now, options_.heartbeat_timeout)) {
    look_around(now);  // of several silent ranks, news may tell who waits for whom
    const Rank silent = *monitor_.silent(now, options_.heartbeat_timeout);
    return fail(FailureCause::Hang,
                "rank " + std::to_string(silent.value) + " is silent; " + report(silent, now));
  }
  for (const Rank rank : monitor_.overdue(now, options_.action_timeout)) confirm(rank, now);
  if (const auto hanging = monitor_.hanging(now, options_.action_timeout))
    fail(FailureCause::Hang,
         "rank " + std::to_string(hanging->value) + " is alive but makes no progress; " +
             report(*hanging, now));
}

/// Everything that we sent it was read, and it knows us: our goodbye lies before it.
bool RegionLoop::is_settled(const Neighbour& peer) const {
  if (peer.left || peer.gone || (carrying_ && !carries(peer))) return true;
  return peer.reader && peer.waiting.empty() &&
         peer.inbox.content->met.load(std::memory_order_acquire) != 0 &&
         peer.writer->settled_at(peer.inbox.content->consumed.load());
}

void RegionLoop::leave_when_settled() {
  if (stopped_) return;
  const auto has_written = [](const Neighbour* each) {
    return each->gone || each->waiting.empty();
  };
  if (!std::all_of(known_.begin(), known_.end(), has_written)) return;
  if (!carrying_ && board_.content->left.exchange(1) == 0) ring_all_bells();
  settled_ = std::all_of(
      known_.begin(), known_.end(), [&](const Neighbour* each) { return is_settled(*each); });
  if (settled_ && !carrying_) mailbox_.settle();
}

void RegionLoop::fail(FailureCause cause, const std::string& text) {
  if (!mailbox_.fail(cause, text)) return;
  stopped_ = Stop{cause, text};
  if (carrying_) return carrying_->failed(cause, text);
  shout(*stopped_);
}

/// Passed on by everybody: not all know the one who found out.
void RegionLoop::shout(const Stop& stop) {
  Board& board = *board_.content;
  if (board.stop != 0) return;
  const std::size_t bytes = std::min(stop.text.size(), board.text.size());
  stop.text.copy(board.text.data(), bytes);
  board.text_bytes = static_cast<std::uint32_t>(bytes);
  board.stop.store(1 + static_cast<std::uint32_t>(stop.cause));
  ring_all_bells();
}

}  // namespace millrace::shared_memory
