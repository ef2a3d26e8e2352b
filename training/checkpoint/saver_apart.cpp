// Saver::save_apart: the commit protocol without a word between the processes. What they told each
// other in collectives stands in files, and the first one finishes the checkpoint as ever, when all
// have voted for the same state.
#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/training/state.hpp"
#include "training/checkpoint/names.hpp"
#include "training/checkpoint/saver.hpp"
#include "training/checkpoint/shard_json.hpp"
#include "training/checkpoint/votes.hpp"

namespace millrace {
namespace {

std::string step_text(const Moment& moment) {
  return "step " + std::to_string(moment.step);
}

}  // namespace

SaveReport Saver::save_apart(Manifest head, const std::string& refusal, bool all_live) {
  begun_ = Clock::now();
  settle();
  manifest_ = std::move(head);
  gradients_.reset();
  folder_.move_aside();
  VoteFolder votes(folder_.root(), word_, *files_);
  std::string verdict;
  try {
    if (!all_live)
      verdict = found("a rank is lost or hangs");
    else if (group_.rank() == 0)
      verdict = counted(votes, vote(votes, refusal));
    else
      verdict = followed(votes, vote(votes, refusal));
  } catch (const std::exception& error) {
    verdict = kFault + std::string(error.what());
  }
  pause_ = seconds_since(begun_);
  SaveReport report = report_of(verdict);
  report.after_failure = true;
  return report;
}

/// What was on its way ends here: nobody can say of it that all have written.
void Saver::settle() {
  if (work_.valid()) work_.wait();
  work_ = {};
  phase_ = Phase::Idle;
}

std::string Saver::found(const std::string& otherwise) const {
  return folder_.has(moment()) ? folder_.place_of(moment()) + "\n" : kFault + otherwise;
}

/// What the vote is about: a line that has to be the same in all processes.
std::string Saver::subject() const {
  const std::string head = write_manifest(manifest_);
  return folder_name(moment()) + " " + bytes_digest(std::as_bytes(std::span(head))) + "\n";
}

/// This process' share, durable, and what it says of it.
std::string Saver::vote(VoteFolder& votes, const std::string& refusal) {
  if (!refusal.empty()) return kFault + refusal;
  try {
    if (folder_.has(moment())) return subject() + write_shards({});
    if (moment().micro_batches > 0)
      return kFault + std::string(
                          "it is in the middle of an update, whose first sums are in the "
                          "checkpoint that it goes on from");
    snapshot_->take();
    if (shards_ != nullptr) join_shards(votes);
    return subject() + written();
  } catch (const std::exception& error) {
    remove_own_files();
    return kFault + std::string(error.what());
  }
}

/// What is spread over copies goes through files to the first of them, which writes it.
void Saver::join_shards(VoteFolder& votes) {
  if (shards_->copy() > 0) return votes.give(group_.rank(), shards_->own_state());
  std::vector<Tensor> states;
  states.push_back(shards_->own_state());
  const std::span<const Rank> all = group_.processes();
  for (const Rank process : shards_->processes().subspan(1)) {
    const auto place = std::ranges::find(all, process) - all.begin();
    Tensor bytes;
    try {
      bytes = votes.given(static_cast<int>(place), options_.patience);
    } catch (const StorageError& error) {
      throw StorageError("it has no share of " + rank_text(static_cast<std::size_t>(place)) + ": " +
                         error.what());
    }
    Tensor& state = states.emplace_back(
        DType::F32, Dims{static_cast<std::int64_t>(bytes.bytes() / sizeof(float))});
    std::memcpy(state.data(), bytes.data(), state.bytes());
  }
  shards_->join(states, [&](const StateEntry& entry, std::string_view part, const Tensor& whole) {
    snapshot_->fill(entry.parameter->name, part, whole);
  });
}

/// On a full disk the vote needs the room.
void Saver::remove_own_files() {
  for (const Snapshot::File& file : snapshot_->files()) {
    try {
      const std::string path = path_in(folder_.begin(moment()), file.name);
      if (files_->exists(path)) files_->remove(path);
    } catch (const StorageError&) {
      continue;  // the next start removes it
    }
  }
}

/// The first process' part: waits for the votes, and finishes the checkpoint or takes it away.
std::string Saver::counted(VoteFolder& votes, const std::string& own) {
  std::vector<std::string> said = votes.collect(group_.size(), options_.patience);
  said.front() = own;
  const bool all_voted = std::ranges::none_of(said, &std::string::empty);
  std::string verdict = objection(said);
  if (verdict.empty() && folder_.has(moment())) verdict = folder_.place_of(moment()) + "\n";
  if (verdict.empty()) {
    for (std::string& vote : said) vote.erase(0, vote.find('\n') + 1);
    try {
      verdict = committed(said);
    } catch (const std::exception& error) {
      verdict = kFault + std::string(error.what());
    }
  }
  clean_up(votes, all_voted);
  return verdict;
}

std::string Saver::rank_text(std::size_t place) const {
  return "rank " + std::to_string(group_.processes()[place].value);
}

/// Why this is no checkpoint: the first reason in the order of the processes.
std::string Saver::objection(const std::vector<std::string>& votes) const {
  const std::string mine = subject(), first = rank_text(0);
  for (std::size_t i = 0; i < votes.size(); ++i) {
    const std::string& vote = votes[i];
    const std::string rank = rank_text(i);
    if (vote.empty()) return kFault + rank + " did not write its share in time";
    if (is_fault(vote)) return kFault + rank + ": " + vote.substr(1);
    if (vote.starts_with(mine)) continue;
    const auto theirs = moment_in(vote.substr(0, vote.find(' ')));
    if (theirs && *theirs != moment())
      return kFault + rank + " stands behind " + step_text(*theirs) + ", " + first + " behind " +
             step_text(moment());
    return kFault + rank + " has other settings or counters than " + first;
  }
  return {};
}

/// When all have voted nobody writes any more.
void Saver::clean_up(VoteFolder& votes, bool all_voted) {
  try {
    if (all_voted) return folder_.prepare();
  } catch (const StorageError&) {
    return;  // the next start removes it
  }
  folder_.abandon(moment());
  votes.remove();
}

/// Any other process' part. It stays until the outcome is there: whoever watches over the processes
/// may end them all soon after the first one.
std::string Saver::followed(VoteFolder& votes, const std::string& own) {
  auto patience = options_.patience;
  try {
    votes.cast(group_.rank(), own);
    patience *= 2;  // the first one's comes to an end before
  } catch (const StorageError&) {
    votes.await_removal(patience);
    throw;
  }
  votes.await_removal(patience);
  return found(is_fault(own) ? own.substr(1) : rank_text(0) + " did not finish it");
}

}  // namespace millrace
