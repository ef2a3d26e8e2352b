// Saving while training goes on: the state is copied between two steps, a thread writes the copy,
// and the processes agree that all have written before the first one finishes the checkpoint.
#pragma once

#include <chrono>
#include <cstdint>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "millrace/training/checkpoint.hpp"
#include "millrace/training/reports.hpp"
#include "millrace/training/trainer_options.hpp"
#include "millrace/transport/process_group.hpp"
#include "training/checkpoint/folder.hpp"
#include "training/checkpoint/shards.hpp"
#include "training/optimizer_shards.hpp"

namespace millrace {

class VoteFolder;

/// Collective but for its destructor: every process of the group makes one and calls it alike. At
/// most one checkpoint is on its way. Thread-safety: externally synchronised.
class Saver {
 public:
  /// `loaded`: what the training goes on from, which must outlive this; `run`: the contents of
  /// run.json; `shards`: who has what the optimizer keeps, where that is spread. Throws
  /// InvalidArgument for options that make no sense.
  Saver(const TrainingState& state,
        ProcessGroup& group,
        const SaveOptions& options,
        const ResumeReport& loaded,
        std::string run,
        OptimizerShards* shards = nullptr);
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;
  /// Waits for what is being written; a checkpoint that nobody has finished stays unfinished.
  ~Saver() = default;

  /// Locks the folder for this job, makes and cleans it, and tries whether a checkpoint can be
  /// written there. Does nothing where it is held. Throws what Trainer::save names; where
  /// SaveErrors::Continue says so, a folder that cannot be written is a refusal() instead.
  void hold();
  void release() noexcept;
  [[nodiscard]] bool is_held() const { return is_held_; }
  /// Why nothing can be saved there now; empty: it can.
  [[nodiscard]] const std::string& refusal() const { return refusal_; }

  /// Copies the state and begins to write it. `head` is its manifest, as yet without shards. Only
  /// when nothing is on its way.
  void begin(Manifest head);

  /// Whether a checkpoint is on its way.
  [[nodiscard]] bool busy() const { return phase_ != Phase::Idle; }

  /// Sees how far it is; what became of it, when it has ended. With `wait`, waits until then.
  std::optional<SaveReport> advance(bool wait);

  /// Saves the state as it is now when the processes can no longer talk, because one of them
  /// failed; what was on its way is dropped. No collective, but every process that lives calls it:
  /// each writes its share and a vote, the first one finishes the checkpoint when all have voted
  /// for the same `head`. `refusal`: why the state here is not that of `head`; empty: it is. Not
  /// `all_live`: nothing is written or waited for, and the report says whether that checkpoint is
  /// there. What another process writes is waited for as SaveOptions::patience says.
  SaveReport save_apart(Manifest head, const std::string& refusal, bool all_live);

 private:
  enum class Phase : std::uint8_t { Idle, Writing, Committing };
  using Clock = std::chrono::steady_clock;
  static constexpr char kFault = '!';

  [[nodiscard]] static bool is_fault(const std::string& said) { return said.front() == kFault; }
  [[nodiscard]] static double seconds_since(Clock::time_point start);
  [[nodiscard]] std::string held();
  [[nodiscard]] std::string first_held();
  [[nodiscard]] std::string probed();
  void require_own();
  template <class Work>
  void launch(Work work);
  [[nodiscard]] std::string written() const;
  [[nodiscard]] Moment moment() const { return moment_of(manifest_.counters); }
  [[nodiscard]] std::string committed(const std::vector<std::string>& votes);
  [[nodiscard]] SaveReport report_of(const std::string& verdict) const;
  [[nodiscard]] std::string taken();

  void settle();
  [[nodiscard]] std::string found(const std::string& otherwise) const;
  [[nodiscard]] std::string subject() const;
  [[nodiscard]] std::string vote(VoteFolder& votes, const std::string& refusal);
  void join_shards(VoteFolder& votes);
  void remove_own_files();
  [[nodiscard]] std::string counted(VoteFolder& votes, const std::string& own);
  [[nodiscard]] std::string rank_text(std::size_t place) const;
  [[nodiscard]] std::string objection(const std::vector<std::string>& votes) const;
  void clean_up(VoteFolder& votes, bool all_voted);
  [[nodiscard]] std::string followed(VoteFolder& votes, const std::string& own);

  const TrainingState& state_;
  ProcessGroup& group_;
  OptimizerShards* shards_;
  SaveOptions options_;
  std::shared_ptr<FileSystem> files_;
  mutable CheckpointFolder folder_;
  Retention retention_;
  const ResumeReport& loaded_;
  std::string run_;
  std::string word_;  // of this training and no other, the same in all its processes
  bool is_held_ = false;
  bool is_own_ = false;  // the checkpoints there are this training's
  std::string refusal_;
  std::optional<Snapshot> snapshot_;
  std::optional<Snapshot> gradients_;  // of an unfinished update
  Manifest manifest_;
  Phase phase_ = Phase::Idle;
  Clock::time_point begun_;
  double pause_ = 0;
  std::string said_;               // what this process' work came to; empty: not known yet
  std::future<std::string> work_;  // last: it uses all of the above
};

}  // namespace millrace
