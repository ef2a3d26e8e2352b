// Time: signs of life, hanging peers, and the shutdown message. Reports say the same as those of
// ranks that use sockets; what a rank does is read from its file.
#include <algorithm>

#include "transport/shared_memory/region_loop.hpp"

namespace millrace::shared_memory {

namespace {

/// Files that are read in one look; in a larger world it takes several.
constexpr std::size_t kFilesAtOnce = 8;

}  // namespace

/// A stopped rank writes nothing, and its file may hold anything: it is silent, and does not hang.
std::optional<Watch::News> RegionLoop::news_of(Rank rank) const {
  const Neighbour& peer = *neighbours_[rank.index()];
  const auto activity = ProgressSlot::of(peer.progress_file);
  if (!activity) return std::nullopt;
  return Watch::News{*activity, peer.alive_at};
}

void RegionLoop::watch(Clock::time_point now) {
  for (Neighbour* each : known_) {
    if (!each->reader || each->gone) continue;
    const std::uint64_t beat = each->board.content->beat.load(std::memory_order_relaxed);
    if (std::exchange(each->beat, beat) == beat) continue;
    each->alive_at = now;
    monitor_.heard(each->rank, now);
  }
  for (std::size_t i = 0; i < std::min(kFilesAtOnce, known_.size()); ++i) {
    const Neighbour& each = *known_[next_confirmed_++ % known_.size()];
    if (!each.left && !each.gone) watch_.confirm(each.rank, now);
  }
  if (const auto failure = watch_.judge(now)) fail(*failure);
}

/// Everything that we sent it was read, and it knows us: our shutdown message lies before it.
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
  stopped_ = Failure{cause, text};
  if (carrying_) return carrying_->failed(cause, text);
  shout(*stopped_);
}

/// Passed on by every rank: not all know the one that failed first.
void RegionLoop::shout(const Failure& failure) {
  Board& board = *board_.content;
  if (board.stop != 0) return;
  const std::size_t bytes = std::min(failure.text.size(), board.text.size());
  failure.text.copy(board.text.data(), bytes);
  board.text_bytes = static_cast<std::uint32_t>(bytes);
  board.stop.store(1 + static_cast<std::uint32_t>(failure.cause));
  ring_all_bells();
}

}  // namespace millrace::shared_memory
