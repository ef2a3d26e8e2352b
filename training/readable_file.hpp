// A file of data that is open while a training reads from it. Its bytes are read, not mapped: a
// file that another program cuts short is then an error, and not the end of the process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "millrace/training/dataset.hpp"

namespace millrace {

/// Thread-safety: immutable; read from any thread.
class ReadableFile {
 public:
  /// Throws InvalidArgument unless it is a regular file that can be read.
  explicit ReadableFile(std::string name);
  ReadableFile(const ReadableFile&) = delete;
  ReadableFile& operator=(const ReadableFile&) = delete;
  ~ReadableFile();

  /// Bytes that it had when it was opened.
  [[nodiscard]] std::int64_t size() const { return size_; }

  /// Reads bytes from `first` on, all of them. Throws DataError.
  void read(std::int64_t first, std::span<std::uint8_t> to) const;

 private:
  std::string name_;
  int file_;
  std::int64_t size_ = 0;
};

/// Calls `use` with bytes [first, first + count) of the range, piece by piece, in order. Throws as
/// ReadableFile::read.
void read_pieces(const FileRange& range,
                 std::int64_t first,
                 std::int64_t count,
                 const std::function<void(std::span<const std::uint8_t>)>& use);

/// What tensor_digest says of a tensor with these bytes.
[[nodiscard]] std::string digest_of(const FileRange& range);

}  // namespace millrace
