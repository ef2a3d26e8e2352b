// Starts the processes of a job and sees every one of them to its end: output to logs, signals
// passed on with a grace period, no orphan, and the cause of a failure reported last.
#pragma once

#include <chrono>
#include <csignal>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

#include "cli/standard_streams.hpp"
#include "millrace/transport/launch.hpp"

namespace millrace::cli {

/// Thread-safety: externally synchronised.
class RankLogs {
 public:
  /// `directory` exists. Reads the logs of earlier attempts in it, to number this one.
  explicit RankLogs(std::string directory);

  [[nodiscard]] std::string path(int rank) const;

  /// Opens the log of a rank, appends the line that begins this attempt, and returns the
  /// descriptor, which is the caller's. Throws Error when the log cannot be written.
  [[nodiscard]] int open(int rank);

  /// Renames the logs of ranks that this attempt has not opened: "rank-2.before-attempt-3.log".
  void set_aside_others() const;

 private:
  std::string directory_;
  std::vector<std::string> opened_;
  int attempt_ = 1;
};

struct ExecWords;

/// What one rank is started with.
struct RankStart {
  std::vector<std::string> command;  ///< the first word is a path
  Variables variables;               ///< its whole environment
  int keys = -1;                     ///< a descriptor that it inherits; -1: none
  /// A file that the rank makes when it joins. A rank that ends or lets others wait without having
  /// made it counts as failed. Empty: not checked.
  std::string joined_mark;
};

/// How the ranks of a job ended.
struct JobEnd {
  int code = 0;  ///< of the failure that caused the others, or 0; 130 or 143 after a signal
  bool is_asked = false;                  ///< by a signal to this process
  std::string what = {};                  ///< the failure: "rank 1 was ended by signal 9 (Killed)"
  std::optional<std::int64_t> step = {};  ///< that the failed rank was in; empty: not known
};

struct SupervisorOptions {
  std::string log_directory;  ///< gets rank-R.log, by the first rank of a process
  int places = 1;             ///< ranks that each process is
  bool bind_cores = false;
  /// Gets the message about the first worker that fails, for those that still wait for it.
  std::string failure_notice;
  /// A worker that was stopped this long ago is ended, should no other rank have found it silent.
  std::chrono::milliseconds heartbeat_timeout{10'000};
  /// After a failure or a signal, the others have this long before they are killed. After the end
  /// of rank 0, processes that it started may write to its standard error for so long.
  std::chrono::milliseconds grace{5000};
  /// A rank with a mark must join so soon after its start, or after the last other one that joined.
  std::chrono::milliseconds join_timeout{60'000};
  /// The training step of a rank, as LaunchConfig::step_of; empty: the step is not of interest.
  std::function<std::optional<std::int64_t>(int rank)> step_of = {};
};

/// Thread-safety: thread-affine; the process must have one thread and no network context yet.
class Supervisor {
 public:
  explicit Supervisor(SupervisorOptions options);
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;
  /// Kills and reaps what still runs.
  ~Supervisor();

  /// Starts the next rank, or ranks, in a process group of its own, and returns its process. Rank 0
  /// writes to this process's standard output.
  pid_t start(const RankStart& start);

  /// Waits for all. The code is 130 after an interrupt and 143 after a termination or a hang-up,
  /// unless hang-ups were ignored from the start.
  [[nodiscard]] JobEnd wait();

  /// Prints on standard error how it ended, the cause last.
  void report() const;

  /// Waits before the ranks start again. Returns the exit code if a signal ends the job; else 0.
  [[nodiscard]] int pause(std::chrono::milliseconds time);

 private:
  using Clock = std::chrono::steady_clock;

  struct Stop {
    int signal = 0;
    Clock::time_point since;
  };

  struct Worker {
    pid_t process = -1;
    int pidfd = -1;
    std::string log;
    off_t log_begin = 0;        // where this attempt begins in it
    std::optional<int> status;  // as waitpid says
    Clock::time_point ended;
    bool killed_by_us = false;
    std::optional<Stop> stopped;       // and not continued since
    std::string mark;                  // empty: joined, or not checked
    bool absent = false;               // the others waited for it in vain
    std::optional<std::int64_t> step;  // in which it ended
  };

  [[noreturn]] void exec_worker(const RankStart& start,
                                int rank,
                                int errors,
                                const ExecWords& words) const;
  void poll_once();
  void take_signal();
  void copy_errors();
  void read_rest();
  void pass_on();
  void note_of_first(std::string_view text) const;
  bool reap(Worker& worker);
  void heed_end(const Worker& worker);
  void look_for_joined(Worker& worker);
  void end_stopped();
  void end_absent(bool late);
  [[nodiscard]] int wait_ms() const;
  void signal_all(int signal);
  [[nodiscard]] bool all_ended() const;
  [[nodiscard]] const Worker* culprit() const;
  [[nodiscard]] const Worker* witness() const;
  [[nodiscard]] const Worker* hung() const;
  [[nodiscard]] std::string ranks_of(const Worker& worker) const;
  [[nodiscard]] std::string name_of(const Worker& worker) const;
  [[nodiscard]] static std::string stop_of(const Worker& worker);
  [[nodiscard]] std::string absence_of(const Worker& worker) const;
  void announce(const Worker& worker);
  void publish(const std::string& message);
  void print_tail(const Worker& worker) const;
  void explain(const Worker& worker) const;
  void name_absent() const;
  void name_stopped() const;
  void note_strangers() const;
  [[nodiscard]] JobEnd end_of_job() const;
  [[nodiscard]] int code_of_signal() const;
  [[nodiscard]] std::optional<std::int64_t> step_of(const Worker& worker) const;

  SupervisorOptions options_;
  RankLogs logs_;
  std::vector<Worker> workers_;
  sigset_t watched_;
  int signals_ = -1;    // signalfd
  int errors_ = -1;     // rank 0's standard error
  int first_log_ = -1;  // and its log
  UnwaitingWriter terminal_{2};
  std::string unread_;  // of what rank 0 printed, by the reader of our standard error
  int received_ = 0;    // the signal that ends us
  bool published_ = false;
  std::optional<std::int64_t> step_;  // of rank 0, as last seen
  std::optional<Clock::time_point> kill_at_;
  Clock::time_point last_joined_ = Clock::now();  // or started
  int joined_ = 0;                                // of those with a mark
};

/// 0 for a good end; higher ones explain lower ones.
[[nodiscard]] int weight_of(int status);

/// It failed because another rank did, and says which.
[[nodiscard]] bool blames_another(int status);

/// It aborted itself: a program that lets what it found of another rank escape its main does.
[[nodiscard]] bool is_aborted(int status);

/// Exit code of the launch that this is the cause of.
[[nodiscard]] int code_of(int status);

/// "ended with exit code 1", "was ended by signal 9 (Killed)".
[[nodiscard]] std::string end_of(int status);

}  // namespace millrace::cli
