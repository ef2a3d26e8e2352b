// Removes what a killed job leaves on the host.
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>
#include <vector>

#include "cli/ranks/launch.hpp"
#include "millrace/core/error.hpp"
#include "millrace/transport/private_directory.hpp"

namespace millrace::cli {

namespace {

constexpr int kPatienceMs = 2000;
constexpr int kTries = 200;
constexpr int kPauseMs = 10;
constexpr char kMade = '+';
constexpr char kFailed = '-';
constexpr pid_t kAllEnded = 0;  // as Cleanup::watch has it

/// The workers are dying with the launcher and may still write: again until nothing is left.
void remove(const std::string& directory) {
  for (int i = 0; i < kTries; ++i) {
    std::error_code error;
    std::filesystem::remove_all(directory, error);
    if (!error && !std::filesystem::exists(directory, error)) return;
    ::poll(nullptr, 0, kPauseMs);
  }
}

std::string owner_file(const std::string& directory) {
  return directory + "/owner";
}

/// Shared with the other process of this job; a sweep asks for it alone. -1 when there is no file.
int lock_owner(const std::string& path, int flags, int operation) {
  const int file = ::open(path.c_str(), flags | O_RDONLY | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file < 0 || ::flock(file, operation) == 0) return file;
  ::close(file);
  return -1;
}

/// The file has its name only when it is locked, or a sweep might come between. It stays open, and
/// so locked, until this process ends.
void own(const std::string& directory) {
  const std::string path = owner_file(directory), aside = path + ".new";
  if (lock_owner(aside, O_CREAT | O_EXCL, LOCK_SH) < 0 ||
      std::rename(aside.c_str(), path.c_str()) != 0)
    throw Error("cannot make " + path + ": " + std::generic_category().message(errno));
}

/// A private directory of this user, by its name and its facts.
bool is_of_a_job(const std::filesystem::directory_entry& entry) {
  struct stat facts {};
  return entry.path().filename().string().starts_with("millrace-") &&
         ::lstat(entry.path().c_str(), &facts) == 0 && S_ISDIR(facts.st_mode) &&
         facts.st_uid == ::geteuid() && (facts.st_mode & 077U) == 0;
}

/// Says where the directory is, or why there is none.
bool report(int out, char what, const std::string& text) {
  const std::string word = what + text + '\n';
  return ::write(out, word.data(), word.size()) == static_cast<ssize_t>(word.size());
}

/// Waits for the launcher's end; the process groups that it has then not seen end itself.
std::vector<pid_t> groups_at_the_end(int alive) {
  std::vector<pid_t> groups;
  for (;;) {
    pid_t group = 0;
    const ssize_t count = ::read(alive, &group, sizeof group);
    if (count < 0 && errno == EINTR) continue;
    if (count != sizeof group) return groups;
    if (group == kAllEnded)
      groups.clear();
    else
      groups.push_back(group);
  }
}

/// In a session of its own: signals that end the launcher's whole group do not reach it. Holds none
/// of the launcher's streams open.
[[noreturn]] void keep_house(const std::string& parent, int alive, int out) {
  ::prctl(PR_SET_NAME, "millrace-tidy");
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(signal, SIG_IGN);
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(nothing, stream);
  try {
    const PrivateDirectory directory(parent);
    own(directory.path());
    static_cast<void>(report(out, kMade, directory.path()));
    for (const pid_t group : groups_at_the_end(alive)) ::kill(-group, SIGKILL);
    remove(directory.path());
  } catch (const std::exception& error) {
    static_cast<void>(report(out, kFailed, error.what()));
  }
  ::_exit(0);
}

std::string read_line(int in) {
  std::string line;
  for (char byte = 0; byte != '\n';) {
    const ssize_t count = ::read(in, &byte, 1);
    if (count < 0 && errno == EINTR) continue;
    if (count != 1) break;
    if (byte != '\n') line += byte;
  }
  return line;
}

}  // namespace

Cleanup::Cleanup(const std::string& parent) {
  std::array<int, 2> alive{};
  std::array<int, 2> gone{};
  if (::pipe2(alive.data(), O_CLOEXEC) != 0) throw Error("cannot make a pipe");
  if (::pipe2(gone.data(), O_CLOEXEC) != 0) throw Error("cannot make a pipe");
  alive_ = alive[1];
  gone_ = gone[0];
  const pid_t between = ::fork();
  if (between == 0) {
    ::setsid();
    // Not a child of the launcher, which waits for its workers only.
    if (::fork() != 0) ::_exit(0);
    ::close(alive_);
    ::close(gone_);
    keep_house(parent, alive[0], gone[1]);
  }
  ::close(alive[0]);
  ::close(gone[1]);
  if (between < 0)
    throw Error(std::string("cannot start a process: ") + std::generic_category().message(errno));
  ::waitpid(between, nullptr, 0);
  const std::string word = read_line(gone_);
  if (word.empty()) throw Error("the process that cleans up has gone");
  directory_ = word.substr(1);
  if (word.front() != kMade) throw Error(directory_);
  owner_ = lock_owner(owner_file(directory_), 0, LOCK_SH);
}

void Cleanup::watch(pid_t group) const {
  static_cast<void>(::write(alive_, &group, sizeof group));
}

void Cleanup::sweep(const std::string& parent) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(parent, ignored)) {
    if (!is_of_a_job(entry)) continue;
    const int owner = lock_owner(owner_file(entry.path()), 0, LOCK_EX | LOCK_NB);
    if (owner < 0) continue;
    std::filesystem::remove_all(entry.path(), ignored);
    ::close(owner);
  }
}

Cleanup::~Cleanup() {
  watch(kAllEnded);
  ::close(alive_);
  pollfd end{gone_, POLLIN, 0};
  ::poll(&end, 1, kPatienceMs);
  ::close(gone_);
  std::error_code ignored;
  if (owner_ >= 0) ::close(owner_);
  std::filesystem::remove_all(directory_, ignored);  // should that process itself have been killed
}

}  // namespace millrace::cli
