// What processes tell each other when they can no longer talk: a file each, in a folder that all of
// them see. Whoever waits for one does so with a bound.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "millrace/training/checkpoint.hpp"

namespace millrace {

/// The folder of one vote, and the files of the training around it. The first process counts and
/// removes it; the others cast and wait until it is gone. Thread-safety: externally synchronised.
class VoteFolder {
 public:
  /// In `root`. `word` is in the name of all that this training leaves unfinished there, and in no
  /// other's: a process that was left over from an earlier run votes elsewhere.
  VoteFolder(const std::string& root, const std::string& word, FileSystem& files);

  /// Durable, and there whole or not at all. Throws StorageError.
  void cast(int process, const std::string& vote);

  /// Before its vote: what another process writes for this one. Throws as cast().
  void give(int process, const Tensor& share);
  /// Waits for it, with that patience behind the last file that came. Throws StorageError where the
  /// process votes without it, with what it says, or never gives it.
  [[nodiscard]] Tensor given(int process, std::chrono::milliseconds patience);

  /// Waits for the votes of the processes 1 to `count` - 1; gives what came, by process, empty
  /// where nothing did. Returns as soon as all are there, and when nothing new came for `patience`.
  /// Throws StorageError.
  [[nodiscard]] std::vector<std::string> collect(int count, std::chrono::milliseconds patience);

  /// Waits until the folder is removed, `patience` behind the last file that came. Throws
  /// StorageError.
  void await_removal(std::chrono::milliseconds patience);

  /// As far as that goes.
  void remove();

 private:
  template <class Done>
  void wait(std::chrono::milliseconds patience, const Done& done) const;
  [[nodiscard]] std::size_t files_there() const;
  [[nodiscard]] std::string path_of(int process) const;
  [[nodiscard]] std::string share_of(int process) const;
  void put(const std::string& path, std::span<const std::byte> bytes);

  std::string root_, prefix_, folder_;
  FileSystem& files_;
  bool is_known_ = false;  // the folder was there
};

}  // namespace millrace
