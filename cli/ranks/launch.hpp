// The processes of a job on this machine, from start to end.
#pragma once

#include <string>
#include <sys/types.h>
#include <vector>

#include "cli/ranks/link_flags.hpp"

namespace millrace::cli {

struct LaunchFlags {
  int processes = 4;
  std::string log_directory = {};  ///< empty: logs go with the job
  double grace = 5;                ///< seconds
  int restarts = 0;                ///< without progress
  bool bind_cores = false;
  bool dry_run = false;
  LinkFlags link = {.link = "auto"};
  std::vector<std::string> command = {};  ///< what every process does: train or doctor, and options
};

/// Starts the ranks, passes signals on, waits for all, and starts them again where the flags say
/// so. Returns the exit code of the last failure that caused the others, or 0. Throws
/// InvalidArgument on flags that make no sense, Error when the system refuses. The process must
/// have one thread and no network context yet.
[[nodiscard]] int launch(const LaunchFlags& flags);

/// The path of the program that was typed: itself where it has a slash, else the first of `folders`
/// (as PATH has them) that holds it. Throws InvalidArgument when there is none or it may not be
/// executed.
[[nodiscard]] std::string found_program(const std::string& typed, const std::string& folders);

/// Thread-safety: thread-affine; the process must have one thread and no network context yet.
class Cleanup {
 public:
  /// Starts the process, which makes a PrivateDirectory in `parent`: its maker is there to
  /// remove it, whenever this process may be killed. Throws Error when either fails.
  explicit Cleanup(const std::string& parent);
  Cleanup(const Cleanup&) = delete;
  Cleanup& operator=(const Cleanup&) = delete;
  /// Has the directory removed and waits, up to two seconds, until its process has gone.
  ~Cleanup();

  [[nodiscard]] const std::string& directory() const { return directory_; }

  /// Has this process group killed when the launcher ends without having destroyed this: programs
  /// may have started others, which do not end with their parent. 0: those so far have ended.
  void watch(pid_t group) const;

  /// Removes the directories in `parent` whose job is dead: no process holds the lock any more that
  /// launcher and cleanup have on the file `owner` in theirs.
  static void sweep(const std::string& parent);

 private:
  std::string directory_;
  int owner_ = -1;
  int alive_ = -1;  // open as long as this process lives
  int gone_ = -1;   // the directory's path comes out of it; ends when the cleanup ends
};

}  // namespace millrace::cli
