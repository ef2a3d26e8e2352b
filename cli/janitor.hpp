// Cleans up behind a launcher that was killed: a process that waits for the launcher's end, however
// it comes, and then removes the directory in which the sockets, keys and logs of the job lie.
#pragma once

#include <string>

namespace millrace::cli {

/// Thread-safety: thread-affine; the process must have one thread and no network context yet.
class Janitor {
 public:
  /// Throws Error when no process can be started.
  explicit Janitor(const std::string& directory);
  Janitor(const Janitor&) = delete;
  Janitor& operator=(const Janitor&) = delete;
  /// Has the directory removed and waits, up to two seconds, until the janitor itself has gone.
  ~Janitor();

 private:
  int alive_ = -1;  // open as long as this process lives
  int gone_ = -1;   // ends when the janitor ends
};

}  // namespace millrace::cli
