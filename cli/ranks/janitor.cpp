// See janitor.hpp.
#include "cli/ranks/janitor.hpp"

#include <array>
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>

#include "millrace/core/error.hpp"
#include "millrace/transport/zeromq.hpp"

namespace millrace::cli {

namespace {

constexpr int kPatienceMs = 2000;
constexpr int kTries = 200;
constexpr int kPauseMs = 10;
constexpr char kMade = '+';
constexpr char kFailed = '-';

/// The workers are dying with the launcher and may still write: again until nothing is left.
void remove(const std::string& directory) {
  for (int i = 0; i < kTries; ++i) {
    std::error_code error;
    std::filesystem::remove_all(directory, error);
    if (!error && !std::filesystem::exists(directory, error)) return;
    ::poll(nullptr, 0, kPauseMs);
  }
}

/// Says where the directory is, or why there is none.
bool tell(int out, char what, const std::string& text) {
  const std::string word = what + text + '\n';
  return ::write(out, word.data(), word.size()) == static_cast<ssize_t>(word.size());
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
    static_cast<void>(tell(out, kMade, directory.path()));
    char byte = 0;
    while (::read(alive, &byte, 1) < 0 && errno == EINTR) {
    }
    remove(directory.path());
  } catch (const std::exception& error) {
    static_cast<void>(tell(out, kFailed, error.what()));
  }
  ::_exit(0);
}

std::string read_line(int in) {
  std::string line;
  for (char byte = 0; ::read(in, &byte, 1) == 1 && byte != '\n';) line += byte;
  return line;
}

}  // namespace

Janitor::Janitor(const std::string& parent) {
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
}

Janitor::~Janitor() {
  ::close(alive_);
  pollfd end{gone_, POLLIN, 0};
  ::poll(&end, 1, kPatienceMs);
  ::close(gone_);
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);  // should the janitor itself have been killed
}

}  // namespace millrace::cli
