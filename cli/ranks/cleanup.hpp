// Makes the private directory of a job and cleans up behind a launcher that was killed: a process
// that outlives the launcher, waits for its end, however it comes, and then ends what is left of
// the ranks and removes the directory in which the sockets, keys and logs of the job lie. Where
// both were killed, the next job cleans up.
#pragma once

#include <string>
#include <sys/types.h>

namespace millrace::cli {

/// Thread-safety: thread-affine; the process must have one thread and no network context yet.
class Cleanup {
 public:
  /// Starts the process, which makes a PrivateDirectory in `parent`: whoever makes it is there to
  /// remove it, whenever this process may be killed. Throws Error when either fails.
  explicit Cleanup(const std::string& parent);
  Cleanup(const Cleanup&) = delete;
  Cleanup& operator=(const Cleanup&) = delete;
  /// Has the directory removed and waits, up to two seconds, until its process has gone.
  ~Cleanup();

  [[nodiscard]] const std::string& directory() const { return directory_; }

  /// Has this process group killed when the launcher ends without having destroyed this: programs
  /// may have started others, which do not end with their parent.
  void watch(pid_t group) const;

  /// Removes the directories in `parent` whose job is dead: nobody holds the lock any more that
  /// launcher and cleanup have on the file `owner` in theirs.
  static void sweep(const std::string& parent);

 private:
  std::string directory_;
  int owner_ = -1;
  int alive_ = -1;  // open as long as this process lives
  int gone_ = -1;   // the directory's path comes out of it; ends when the cleanup ends
};

}  // namespace millrace::cli
