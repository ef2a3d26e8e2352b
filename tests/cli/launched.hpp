// A millrace command as a child process with a temporary directory of its own, in which it must
// leave nothing.
#pragma once

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <poll.h>
#include <sstream>
#include <string>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/transport/private_directory.hpp"
#include "millrace/transport/zeromq.hpp"

namespace millrace::test {

using Clock = std::chrono::steady_clock;

/// A short job.
inline constexpr const char* kThreeSteps =
    "train --json --steps 3 --batch-size 64 -m 12 --clip-norm 1";

struct Outcome {
  int code = -1;
  std::string output;
  std::string errors;
};

inline std::string temporary() {
  return std::filesystem::temp_directory_path();
}

inline std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class Command {
 public:
  /// LOGS in the arguments is a folder that this removes; `before` is what the shell does first.
  explicit Command(std::string arguments, const std::string& before = {}) : scratch_(temporary()) {
    if (const auto at = arguments.find("LOGS"); at != std::string::npos)
      arguments.replace(at, 4, scratch_.path() + "/logs");
    std::filesystem::create_directory(scratch_.path() + "/tmp");
    const std::string line = "export TMPDIR=" + scratch_.path() + "/tmp; " + before +
                             "exec " MILLRACE_BINARY_DIR "/millrace " + arguments + " >" +
                             scratch_.path() + "/out 2>" + scratch_.path() + "/err";
    process_ = ::fork();
    if (process_ == 0) {
      ::execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
      ::_exit(127);
    }
  }

  ~Command() {
    if (process_ > 0) static_cast<void>(end());
  }

  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  [[nodiscard]] pid_t process() const { return process_; }
  void signal(int number) const { ::kill(process_, number); }

  /// Waits until no signal that was sent to it is left to be taken.
  void await_signals() const {
    const std::string status = "/proc/" + std::to_string(process_) + "/status";
    const auto pending = [&] {
      const std::string text = text_of(status);
      const auto at = text.find("ShdPnd:\t");
      return at != std::string::npos && text.find_first_not_of('0', at + 8) < text.find('\n', at);
    };
    while (pending()) std::this_thread::yield();
  }

  /// Process ids of the workers, by rank, as soon as `count` of them are there; fewer where the
  /// command ends before.
  [[nodiscard]] std::vector<pid_t> workers(std::size_t count) const {
    const auto deadline = Clock::now() + std::chrono::seconds(20);
    const std::string number = std::to_string(process_);
    const std::string children = "/proc/" + number + "/task/" + number + "/children";
    std::vector<pid_t> found;
    while (found.size() < count && !has_ended() && Clock::now() < deadline) {
      std::this_thread::yield();
      std::istringstream line(text_of(children));
      found.clear();
      for (pid_t child = 0; line >> child;) found.push_back(child);
    }
    return found;
  }

  /// Waits until rank 0 has told of an epoch, so that training runs for certain.
  void await_training() const {
    const auto deadline = Clock::now() + std::chrono::seconds(60);
    while (text_of(scratch_.path() + "/err").find("epoch") == std::string::npos &&
           Clock::now() < deadline)
      std::this_thread::yield();
  }

  /// Waits until the command has ended, without reaping it.
  void await_end() const { static_cast<void>(has_ended(0)); }

  /// Kills the command and asks no questions.
  void kill() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = -1;
  }

  [[nodiscard]] bool left_nothing() const {
    return std::filesystem::is_empty(scratch_.path() + "/tmp");
  }

  /// Its TMPDIR, with the folder of its ranks.
  [[nodiscard]] std::string temporary_folder() const { return scratch_.path() + "/tmp"; }

  /// The files of its standard output and error.
  [[nodiscard]] std::string output_path() const { return scratch_.path() + "/out"; }
  [[nodiscard]] std::string errors_path() const { return scratch_.path() + "/err"; }

  /// The folder LOGS.
  [[nodiscard]] std::string logs() const { return scratch_.path() + "/logs"; }

  /// What rank `rank` said, with --log-dir LOGS.
  [[nodiscard]] std::string log(std::size_t rank) const {
    return text_of(logs() + "/rank-" + std::to_string(rank) + ".log");
  }

  [[nodiscard]] bool has_ended(int flags = WNOHANG) const {
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(process_), &info, WEXITED | WNOWAIT | flags);
    return info.si_pid != 0;
  }

  Outcome end() {
    int status = 0;
    ::waitpid(process_, &status, 0);
    process_ = -1;
    EXPECT_TRUE(left_nothing()) << "files were left behind";
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
            text_of(scratch_.path() + "/out"),
            text_of(scratch_.path() + "/err")};
  }

 private:
  PrivateDirectory scratch_;
  pid_t process_ = -1;
};

inline Outcome run(const std::string& arguments, const std::string& before = {}) {
  return Command(arguments, before).end();
}

/// How often `part` occurs.
inline std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

/// As --json prints it; the errors of a job that printed none.
inline std::string weights_text(const Outcome& outcome) {
  const auto at = outcome.output.find("\"weights_hash\"");
  return at == std::string::npos ? outcome.errors : outcome.output.substr(at, 60);
}

/// What a folder of --save has: the step of its newest checkpoint, 0 without one, and whether one
/// is being written.
struct Saved {
  explicit Saved(const std::string& folder) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
      const std::string name = entry.path().filename();
      writes = writes || name.starts_with(".tmp-step-");
      if (name.starts_with("step-")) newest = std::max(newest, std::stol(name.substr(5)));
    }
  }

  long newest = 0;
  bool writes = false;
};

/// The words of a worker that meets the others of its world in `place`.
inline std::string worker(const PrivateDirectory& place,
                          int rank,
                          int world,
                          const std::string& work) {
  return "worker --rank " + std::to_string(rank) + " --world " + std::to_string(world) +
         " --endpoint ipc --join-timeout 20 --rendezvous ipc://" + place.path() +
         "/rendezvous -- " + work;
}

/// Watches processes that are not this one's children. Thread-safety: externally synchronised.
class Watch {
 public:
  explicit Watch(const std::vector<pid_t>& processes) : ends_(processes.size(), Clock::now()) {
    for (const pid_t process : processes)
      // One that has ended already gives -1, which poll leaves alone.
      files_.push_back({static_cast<int>(::syscall(SYS_pidfd_open, process, 0)), POLLIN, 0});
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  ~Watch() {
    for (const pollfd& file : files_)
      if (file.fd >= 0) ::close(file.fd);
  }

  /// When each of them ended, once all have; the moment of construction for those that had before.
  const std::vector<Clock::time_point>& ends() {
    const auto watched = [](const pollfd& file) { return file.fd >= 0; };
    while (std::any_of(files_.begin(), files_.end(), watched)) {
      ::poll(files_.data(), files_.size(), -1);
      for (std::size_t i = 0; i < files_.size(); ++i) {
        if (!watched(files_[i]) || files_[i].revents == 0) continue;
        ends_[i] = Clock::now();
        ::close(std::exchange(files_[i].fd, -1));
      }
    }
    return ends_;
  }

 private:
  std::vector<pollfd> files_;
  std::vector<Clock::time_point> ends_;
};

/// Gone, or dead and waiting for whoever adopted it to notice.
inline bool is_gone(pid_t process) {
  const std::string facts = text_of("/proc/" + std::to_string(process) + "/stat");
  const auto after_name = facts.rfind(')');
  return after_name == std::string::npos || facts.substr(after_name, 3) == ") Z";
}

inline bool all_gone(const std::vector<pid_t>& processes) {
  return std::all_of(processes.begin(), processes.end(), is_gone);
}

}  // namespace millrace::test
