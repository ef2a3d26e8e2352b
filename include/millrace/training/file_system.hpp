// What checkpoints ask of a file system: one call each, so that a test, or a store that is none,
// can stand in its place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "millrace/core/error.hpp"
#include "millrace/core/tensor.hpp"

namespace millrace {

/// The file system refused; the message names the path and the reason.
class StorageError : public Error {
 public:
  using Error::Error;
};

/// A file that is being written.
struct OpenFile {
  int descriptor = -1;
  std::string path;
};

/// The calls as POSIX has them. Every one throws StorageError when it fails; nothing is tried
/// twice. A sync that failed means that data may be lost, whatever a later one says.
/// Thread-safety: all calls from any thread.
class FileSystem {
 public:
  FileSystem() = default;
  FileSystem(const FileSystem&) = delete;
  FileSystem& operator=(const FileSystem&) = delete;
  virtual ~FileSystem() = default;

  /// A new file; fails when there is one of that name.
  virtual OpenFile create(const std::string& path);
  /// Takes the room for so many bytes, so that a full disk is found before anything is written.
  virtual void reserve(const OpenFile& file, std::uint64_t bytes);
  /// Writes some of the bytes, at least one, and tells how many.
  virtual std::size_t write(const OpenFile& file, std::span<const std::byte> bytes);
  /// Returns when the file's contents are durable.
  virtual void sync(const OpenFile& file);
  virtual void close(const OpenFile& file);

  /// Also makes the folders above it; one that is there is left as it is.
  virtual void make_folder(const std::string& path);
  /// Returns when the names in the folder are durable.
  virtual void sync_folder(const std::string& path);
  /// Replaces a file of the new name; fails when that is a folder with something in it.
  virtual void rename(const std::string& from, const std::string& to);
  /// A file or an empty folder.
  virtual void remove(const std::string& path);

  /// Creates the file if needed, locks it until unlock() or the end of the process, and writes
  /// `text` into it; none where it is locked already, also in this process. A file system without
  /// locks grants every lock.
  virtual std::optional<OpenFile> lock(const std::string& path, const std::string& text);
  /// Removes the file and frees the lock.
  virtual void unlock(const OpenFile& file);

  /// Names in a folder, ascending; none where there is no such folder.
  virtual std::vector<std::string> list(const std::string& folder);
  virtual bool exists(const std::string& path);
  /// The contents, as u8. Rejects a file of more than `most` bytes before it takes memory, and
  /// anything but a regular file before it waits for it.
  virtual Tensor read(const std::string& path, std::uint64_t most);
};

}  // namespace millrace
