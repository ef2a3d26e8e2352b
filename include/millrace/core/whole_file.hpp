// A file read whole, but never more of it than its kind may have: what a user names may be a
// device without an end, or by accident something huge.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "millrace/core/error.hpp"

namespace millrace {

/// The most bytes that a file of a kind may have, after unpacking where it is packed. One place for
/// all readers of files that a user names.
struct FileLimit {
  const char* kind;
  std::size_t bytes;
};

inline constexpr std::size_t kMebibyte = std::size_t{1} << 20U;
inline constexpr FileLimit kConfigLimit{"a configuration", kMebibyte};
inline constexpr FileLimit kCostLimit{"a cost file", 256 * kMebibyte};
inline constexpr FileLimit kPlanLimit{"a schedule", 1024 * kMebibyte};
inline constexpr FileLimit kTraceLimit{"a trace", 1024 * kMebibyte};
inline constexpr FileLimit kDataLimit{"a file of data", 4096 * kMebibyte};

/// "is larger than 256 MiB, the most that a cost file may have".
[[nodiscard]] inline std::string too_large(const FileLimit& limit) {
  return "is larger than " + std::to_string(limit.bytes / kMebibyte) + " MiB, the most that " +
         limit.kind + " may have";
}

/// The bytes of the file at `path`, at most `limit`. Files and pipes are read; a pipe until its
/// writer closes it. Throws InvalidArgument, which begins with `name`, if the file does not exist,
/// or it is a folder, device or socket; DataError where it has more bytes, which are not read, or
/// reading fails. Cost: O(bytes). Thread-safety: any thread.
template <class Bytes>
[[nodiscard]] Bytes read_whole(const std::string& name,
                               const std::string& path,
                               const FileLimit& limit) {
  namespace fs = std::filesystem;
  std::error_code unknown;
  const fs::file_type type = fs::status(path, unknown).type();
  if (type == fs::file_type::directory)
    throw InvalidArgument(name + " cannot be read: Is a directory");
  if (type == fs::file_type::character || type == fs::file_type::block ||
      type == fs::file_type::socket)
    throw InvalidArgument(name + " is a device or socket; expected a file or a pipe");
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw InvalidArgument(name + " cannot be read: " + std::generic_category().message(errno));
  Bytes bytes;
  std::size_t block = 1U << 16U;  // grows, so that a large file takes few reads
  while (file && bytes.size() <= limit.bytes) {
    const std::size_t had = bytes.size();
    bytes.resize(std::min(had + block, limit.bytes + 1));
    file.read(reinterpret_cast<char*>(bytes.data()) + had,
              static_cast<std::streamsize>(bytes.size() - had));
    bytes.resize(had + static_cast<std::size_t>(file.gcount()));
    block = std::max(block, bytes.size() / 4);
  }
  if (file.bad()) throw DataError(name + " cannot be read to its end");
  if (bytes.size() > limit.bytes) throw DataError(name + " " + too_large(limit));
  return bytes;
}

}  // namespace millrace
