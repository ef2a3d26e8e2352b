// Standard input, output and error of the command: descriptors 0 to 2 are theirs even if the caller
// closed, results that could not be printed are noticed, and progress waits for no reader.
#pragma once

#include <array>
#include <iostream>
#include <streambuf>
#include <string>
#include <string_view>

namespace millrace::cli {

/// Gives every standard stream that the caller closed a descriptor that refuses to be used as the
/// missing one would, so that nothing opened later gets its number. For the start of main.
void occupy_standard_streams();

/// A closed pipe and a file that may not grow become errors of the write, not signals that end the
/// process with half a file written.
void take_failed_writes_as_errors();

/// What std::cout writes to as long as this lives. Waits for the reader, and keeps the first reason
/// why something could not be written; after it nothing more is.
/// Thread-safety: externally synchronised.
class StandardOutput : private std::streambuf {
 public:
  StandardOutput();
  StandardOutput(const StandardOutput&) = delete;
  StandardOutput& operator=(const StandardOutput&) = delete;
  ~StandardOutput() override;

  /// Writes what is left. The error number of the first failure, or 0.
  int finish();

 private:
  int_type overflow(int_type letter) override;
  int sync() override;

  std::array<char, 16384> bytes_{};
  std::streambuf* before_;
  int failure_ = 0;
};

/// Writes as much as the reader of a descriptor has room for, now. Others who have the descriptor
/// still wait when they write to it.
/// Thread-safety: externally synchronised.
class UnwaitingWriter {
 public:
  explicit UnwaitingWriter(int descriptor);
  UnwaitingWriter(const UnwaitingWriter&) = delete;
  UnwaitingWriter& operator=(const UnwaitingWriter&) = delete;
  ~UnwaitingWriter();

  /// Returns how many bytes went out: 0 if none can be written now, all of them if no process will
  /// ever read them.
  std::size_t write(std::string_view bytes);

 private:
  int shared_;    // the caller's
  int own_ = -1;  // of the same pipe or terminal, never waiting; -1 when the system gives none
  bool socket_ = false;
};

/// Under a stream of progress lines, which are flushed one by one: a line for which there is no
/// room is left out. Thread-safety: externally synchronised.
class ProgressBuffer : public std::streambuf {
 public:
  explicit ProgressBuffer(int descriptor) : writer_(descriptor) {}

  /// The end of a line that went out in part, for the next writer to the descriptor.
  [[nodiscard]] const std::string& rest() const { return rest_; }

 private:
  int_type overflow(int_type letter) override;
  std::streamsize xsputn(const char* letters, std::streamsize count) override;
  int sync() override;

  UnwaitingWriter writer_;
  std::string line_, rest_;
};

}  // namespace millrace::cli
