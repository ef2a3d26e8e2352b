// The folder of checkpoints, and the one way in which a checkpoint gets there: written beside, made
// durable, renamed. What is older goes when what is newer is durable, and never before.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "millrace/training/checkpoint.hpp"
#include "training/checkpoint/names.hpp"

namespace millrace {

/// Writes all bytes to a new file, for which at least `room` bytes are reserved, and makes them
/// durable. Throws StorageError; what was begun stays where it is.
void write_durably(FileSystem& files,
                   const std::string& path,
                   std::span<const std::byte> bytes,
                   std::uint64_t room = 0);

/// How many checkpoints stay.
struct Retention {
  int newest = 2;           ///< so many; at least 1
  std::int64_t every = 0;   ///< and those behind a step that is a multiple of this; 0: none
  std::string loaded = {};  ///< and the folder that the training goes on from
  bool best = false;        ///< and the best one by the manifest of each of the newest
};

/// Thread-safety: externally synchronised.
class CheckpointFolder {
 public:
  CheckpointFolder(std::string root, FileSystem& files);
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;
  ~CheckpointFolder() { unlock(); }

  [[nodiscard]] const std::string& root() const { return root_; }

  /// Locks the folder, which is there, for a job of that name, and tries for `wait`. Empty: it is
  /// locked now. Else the job that has it, in a sentence. Throws StorageError.
  [[nodiscard]] std::string lock(const std::string& job, std::chrono::milliseconds wait);
  void unlock() noexcept;

  /// Throws StorageError unless this process can write so many bytes there; leaves nothing.
  void probe(int process, std::uint64_t bytes);

  void make() { files_.make_folder(root_); }
  /// Removes what an earlier run left unfinished. Throws StorageError.
  void clear() { sweep(); }
  /// Makes the folder and clears it. Throws StorageError.
  void prepare();

  /// Where the files of a checkpoint are put before it is finished. Any process makes it.
  std::string begin(const Moment& moment);

  /// Keeps what is unfinished and has `word` in its name from retire().
  void spare(const std::string& word) { spared_ = std::string(kTemporary) + word + "-"; }
  /// From now on unfinished checkpoints have that word in their names: what is still there of
  /// another one is in nobody's way.
  void move_aside() { unfinished_ = spared_; }

  /// Whether there is a finished checkpoint of that moment. Throws StorageError.
  [[nodiscard]] bool has(const Moment& moment) const;
  /// Where it is, or would be.
  [[nodiscard]] std::string place_of(const Moment& moment) const;

  /// Removes the unfinished checkpoint, as far as that goes.
  void abandon(const Moment& moment) noexcept;

  /// Finishes the checkpoint, all of whose shards are durable: when this returns, it is. Where the
  /// same manifest stands already, nothing is done. Throws StorageError; what was there before is
  /// there still. Gives the folder.
  std::string commit(const Moment& moment, const std::string& manifest, const std::string& run);

  /// Renames a checkpoint, so that it no longer counts. Throws StorageError.
  void put_aside(const std::string& folder, std::string_view prefix);

  /// Removes what need not stay, and what is left of saves that failed. Nothing may be in flight
  /// but what is spared.
  /// Throws StorageError.
  void retire(const Retention& retention);

 private:
  [[nodiscard]] std::string temporary(const Moment& moment) const;
  void remove_folder(const std::string& path);
  void remove_as_far(const std::string& folder) noexcept;
  void sweep(const std::string& spared = {});
  [[nodiscard]] std::string holder(std::chrono::milliseconds waited) const;
  [[nodiscard]] bool stands(const std::string& folder, const std::string& manifest);

  std::string root_;
  FileSystem& files_;
  std::string unfinished_{kTemporary};  // how the names of unfinished checkpoints begin
  std::string spared_;                  // empty: nothing is
  std::optional<OpenFile> lock_;
};

}  // namespace millrace
