// The writer thread returns a string: the shards it wrote, the folder it finished, or a fault,
// which begins with kFault.
#include "training/checkpoint/saver.hpp"

#include <algorithm>
#include <fstream>
#include <unistd.h>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/training/state.hpp"
#include "millrace/training/trainer.hpp"
#include "training/checkpoint/names.hpp"
#include "training/checkpoint/shard_json.hpp"

namespace millrace {
namespace {

constexpr std::size_t kWordDigits = 16;
// How what the first process says of the folder begins.
constexpr char kIsUsed = 'u', kIsOther = 'o', kIsRefused = 'r';

/// Sixteen digits that no other training has: of the system's random number, and should it have
/// none of this process and moment.
std::string fresh_word() {
  std::string number;
  std::getline(std::ifstream("/proc/sys/kernel/random/uuid"), number);
  number += " " + std::to_string(::getpid()) + " " +
            std::to_string(std::chrono::steady_clock::now().time_since_epoch().count());
  return bytes_digest(std::as_bytes(std::span(number))).substr(0, kWordDigits);
}

}  // namespace

double Saver::seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Saver::Saver(const TrainingState& state,
             ProcessGroup& group,
             const SaveOptions& options,
             const ResumeReport& loaded,
             std::string run,
             OptimizerShards* shards)
    : state_(state),
      group_(group),
      shards_(shards),
      options_(options),
      files_(options.files ? options.files : std::make_shared<FileSystem>()),
      folder_(whole_path(options.folder), *files_),
      retention_{options.keep, options.keep_every.value_or(0), loaded.folder},
      loaded_(loaded),
      run_(std::move(run)) {
  require(!options.folder.empty(), "there is no folder to save checkpoints in");
  require(options.keep >= 1,
          "at least 1 checkpoint has to stay, got " + std::to_string(options.keep));
  require(
      options.every_steps.value_or(1) >= 1 && options.keep_every.value_or(1) >= 1 &&
          options.every_time.value_or(std::chrono::milliseconds(1)) > std::chrono::milliseconds(0),
      "checkpoints are saved and kept every 1 step or more");
  snapshot_ = snapshot_of(state, group);
}

void Saver::hold() {
  if (is_held_) return;
  try {
    refusal_ = held();
    if (!refusal_.empty() && options_.errors == SaveErrors::Throw)
      throw SaveFailed("no checkpoint can be saved: " + refusal_);
  } catch (...) {
    folder_.unlock();
    throw;
  }
  is_held_ = true;
}

void Saver::release() noexcept {
  is_held_ = false;
  folder_.unlock();
}

/// What every process hears of the first one: the training's word, and what was wrong, if anything.
std::string Saver::held() {
  std::string said = group_.rank() == 0 ? first_held() : std::string("-");
  said = group_.gather(said, Label::Checkpoint).front();
  const char kind = said.front();
  word_ = said.substr(1, kWordDigits);
  folder_.spare(word_);
  std::string fault = said.substr(1 + kWordDigits);
  if (kind == kIsUsed) throw SaveFailed(fault);
  if (kind == kIsOther) throw InvalidArgument(fault);
  return fault.empty() ? probed() : fault;
}

/// The first process looks after the folder.
std::string Saver::first_held() {
  const std::string word = word_.empty() ? fresh_word() : word_;
  const auto wait = loaded_.folder.empty() ? std::chrono::milliseconds(0) : options_.lock_wait;
  try {
    folder_.make();
    const auto job = options_.run.find("job");
    const std::string holder = folder_.lock(job == options_.run.end() ? word : job->second, wait);
    if (!holder.empty()) return kIsUsed + word + holder;
    if (!is_own_) require_own();
    is_own_ = true;
    folder_.prepare();
  } catch (const InvalidArgument& error) {
    return kIsOther + word + error.what();
  } catch (const StorageError& error) {
    return kIsRefused + word + error.what();
  }
  return "-" + word;
}

/// Every process tries to write its share.
std::string Saver::probed() {
  std::string mine;
  std::uint64_t bytes = 0;
  for (const Snapshot::File& file : snapshot_->files()) bytes += file.image.bytes().size();
  try {
    if (bytes > 0) folder_.probe(group_.rank(), bytes);
  } catch (const StorageError& error) {
    mine = error.what();
  }
  for (const std::string& fault : group_.gather(mine, Label::Checkpoint))
    if (!fault.empty()) return fault;
  return {};
}

/// Two trainings in one folder would take each other's checkpoints for their own.
void Saver::require_own() {
  const ResumeReport& loaded = loaded_;
  for (const DamagedCheckpoint& damaged : loaded.damaged)
    folder_.put_aside(damaged.folder, kDamaged);
  for (const std::string& folder : loaded.superseded) folder_.put_aside(folder, kSuperseded);
  const std::vector<CheckpointPlace> places = find_checkpoints(folder_.root(), *files_);
  const std::int64_t step = state_.counters().mini_batches;
  const auto is_before = [&](const CheckpointPlace& place) {
    return Moment{place.step, place.micro_batches} <= moment_of(state_.counters());
  };
  require(places.empty() || (!loaded.folder.empty() && is_before(places.front())), [&] {
    return options_.folder + " has checkpoints of another run, the newest of step " +
           std::to_string(places.front().step) +
           (loaded.folder.empty() ? "; resume it, or save to another folder"
                                  : ", and this one goes on from step " + std::to_string(step) +
                                        "; save to another folder");
  });
}

template <class Work>
void Saver::launch(Work work) {
  said_.clear();
  work_ = std::async(options_.background ? std::launch::async : std::launch::deferred,
                     [work]() -> std::string {
                       try {
                         return work();
                       } catch (const std::exception& error) {
                         return kFault + std::string(error.what());
                       }
                     });
}

void Saver::begin(Manifest head) {
  begun_ = Clock::now();
  manifest_ = std::move(head);
  const PartialUpdate& partial = manifest_.counters.partial;
  gradients_.reset();
  if (partial.micro_batches > 0) gradients_ = gradients_of(state_, partial.copies, group_);
  snapshot_->take();
  if (shards_ != nullptr)
    shards_->collect(
        [&](const StateEntry& entry, std::string_view part, const Tensor& whole) {
          snapshot_->fill(entry.parameter->name, part, whole);
        },
        false);
  if (gradients_) gradients_->take();
  phase_ = Phase::Writing;
  launch([this] { return written(); });
  pause_ = seconds_since(begun_);
}

/// Of the thread: all files of this process, durable.
std::string Saver::written() const {
  const std::string folder = folder_.begin(moment());
  std::vector<CheckpointShard> shards;
  for (const auto* snapshot : {&snapshot_, &gradients_}) {
    if (!*snapshot) continue;
    for (const Snapshot::File& file : (*snapshot)->files())
      write_durably(*files_, path_in(folder, file.name), file.image.bytes());
    for (CheckpointShard& shard : (*snapshot)->described()) shards.push_back(std::move(shard));
  }
  return write_shards(shards);
}

/// Of the first process' thread: the verdict over all votes. Older checkpoints go only behind a
/// success.
std::string Saver::committed(const std::vector<std::string>& votes) {
  try {
    for (const std::string& vote : votes) {
      if (is_fault(vote)) throw StorageError(vote.substr(1));
      for (CheckpointShard& shard : read_shards(vote, "a process' list of files"))
        manifest_.shards.push_back(std::move(shard));
    }
    std::ranges::sort(manifest_.shards, {}, &CheckpointShard::file);
    const std::string folder = folder_.commit(moment(), write_manifest(manifest_), run_);
    try {
      retention_.best = manifest_.counters.validation.best_step > 0;
      folder_.retire(retention_);
    } catch (const StorageError& error) {
      return folder + "\n" + error.what();
    }
    return folder + "\n";
  } catch (const Error&) {
    folder_.abandon(moment());
    throw;
  }
}

SaveReport Saver::report_of(const std::string& verdict) const {
  SaveReport report;
  report.step = manifest_.counters.mini_batches;
  report.pause_seconds = pause_;
  report.seconds = seconds_since(begun_);
  if (is_fault(verdict)) {
    report.fault = verdict.substr(1);
    return report;
  }
  const std::size_t end = verdict.find('\n');
  report.folder = verdict.substr(0, end);
  report.warning = verdict.substr(end + 1);
  return report;
}

/// What the thread came to. Whatever it throws is no fault of storage, and ends the save.
std::string Saver::taken() {
  try {
    return work_.get();
  } catch (...) {
    phase_ = Phase::Idle;
    throw;
  }
}

std::optional<SaveReport> Saver::advance(bool wait) {
  wait = wait || !options_.background;
  while (busy()) {
    const auto start = Clock::now();
    if (work_.valid() &&
        (wait || work_.wait_for(std::chrono::seconds(0)) == std::future_status::ready))
      said_ = taken();
    const std::vector<std::string> said = group_.gather(said_, Label::Checkpoint);
    const bool all_done = std::ranges::none_of(said, &std::string::empty);
    if (all_done && phase_ == Phase::Committing) {
      phase_ = Phase::Idle;
      pause_ += seconds_since(start);
      return report_of(said.front());
    }
    if (all_done) {
      phase_ = Phase::Committing;
      said_ = "-";
      if (group_.rank() == 0) launch([this, said] { return committed(said); });
    }
    pause_ += seconds_since(start);
    if (!wait) break;
  }
  return std::nullopt;
}

}  // namespace millrace
