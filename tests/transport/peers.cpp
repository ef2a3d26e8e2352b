#include "transport/peers.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <poll.h>
#include <spawn.h>
#include <stdexcept>
#include <string_view>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace millrace::testing_transport {

namespace {

constexpr const char* kVariable = "MILLRACE_TEST_PEER";  // "rank:directory"
constexpr int kLine = 3;                                 // where a rank's process has its own
constexpr char kCome = 'c';
constexpr char kGo = 'g';

int milliseconds_until(std::chrono::steady_clock::time_point end) {
  const auto left = end - std::chrono::steady_clock::now();
  return static_cast<int>(std::max<std::chrono::milliseconds::rep>(
      0, std::chrono::ceil<std::chrono::milliseconds>(left).count()));
}

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// What a process is started with: its line, and a file for what it says.
class Start {
 public:
  Start(int line, const std::string& log) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(
        &actions_, STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    posix_spawn_file_actions_adddup2(&actions_, STDOUT_FILENO, STDERR_FILENO);
    posix_spawn_file_actions_adddup2(&actions_, line, kLine);
  }
  Start(const Start&) = delete;
  Start& operator=(const Start&) = delete;
  ~Start() { posix_spawn_file_actions_destroy(&actions_); }

  pid_t operator()(std::vector<std::string> words, const std::string& variable) {
    std::vector<std::string> environment = {variable};
    // It gets the name of the one test that it runs, so that it has no share of all.
    const auto shares = [](std::string_view text) {
      return text.starts_with("GTEST_TOTAL_SHARDS=") || text.starts_with("GTEST_SHARD_INDEX=");
    };
    for (char** at = environ; *at != nullptr; ++at)
      if (!shares(*at)) environment.emplace_back(*at);
    pid_t pid = -1;
    const int refusal = ::posix_spawn(&pid,
                                      words.front().c_str(),
                                      &actions_,
                                      nullptr,
                                      pointers_to(words).data(),
                                      pointers_to(environment).data());
    if (refusal != 0) throw std::system_error(refusal, std::generic_category(), words.front());
    return pid;
  }

 private:
  posix_spawn_file_actions_t actions_{};
};

/// True when a byte came; false at the end of the line and when none came in time.
bool comes(int line, std::chrono::steady_clock::time_point end) {
  pollfd item{line, POLLIN, 0};
  int ready = 0;
  do {
    ready = ::poll(&item, 1, milliseconds_until(end));
  } while (ready < 0 && errno == EINTR);
  char byte = 0;
  return ready > 0 && ::read(line, &byte, 1) == 1;
}

/// How a process ended; empty for a good end, and while it runs.
std::string end_of(int status) {
  if (WIFSIGNALED(status)) return "was ended by signal " + std::to_string(WTERMSIG(status));
  if (WEXITSTATUS(status) == 0) return {};
  return "ended with exit code " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

Supervisor::Supervisor(std::vector<std::string> words)
    : directory_(std::filesystem::temp_directory_path()), words_(std::move(words)) {}

Supervisor::~Supervisor() {
  for (const PeerProcess& peer : peers_) {
    if (peer.pid > 0) {
      ::kill(peer.pid, SIGKILL);
      ::waitpid(peer.pid, nullptr, 0);
    }
    ::close(peer.line);
  }
}

void Supervisor::start(int world) {
  while (static_cast<int>(peers_.size()) < world) {
    const std::string rank = std::to_string(peers_.size());
    std::array<int, 2> line{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, line.data()) != 0)
      throw std::runtime_error("no pair of sockets");
    PeerProcess& peer = peers_.emplace_back(PeerProcess{-1, line[0], directory() + "/log-" + rank});
    peer.pid =
        Start(line[1], peer.log)(words_, std::string(kVariable) + "=" + rank + ":" + directory());
    ::close(line[1]);
  }
}

std::string Supervisor::complaint(std::size_t rank, const std::string& what) const {
  std::ifstream log(peers_[rank].log);
  return "rank " + std::to_string(rank) + " " + what + ", and said:\n" +
         std::string(std::istreambuf_iterator<char>(log), {});
}

std::string Supervisor::together(int world, std::chrono::milliseconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  const auto size = static_cast<std::size_t>(world);
  for (std::size_t rank = 0; rank < size; ++rank)
    if (!comes(peers_[rank].line, end)) return complaint(rank, "did not come together with all");
  for (std::size_t rank = 0; rank < size; ++rank)
    static_cast<void>(::send(peers_[rank].line, &kGo, 1, MSG_NOSIGNAL));
  return {};
}

std::string Supervisor::finish(std::chrono::milliseconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  std::string worst;
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    // The line ends with the process.
    static_cast<void>(comes(peers_[rank].line, end));
    const bool killed = std::chrono::steady_clock::now() >= end;
    if (killed) ::kill(peers_[rank].pid, SIGKILL);
    int status = 0;
    ::waitpid(std::exchange(peers_[rank].pid, -1), &status, 0);
    const std::string ended = killed ? "did not end" : end_of(status);
    if (worst.empty() && !ended.empty()) worst = complaint(rank, ended);
  }
  return worst;
}

std::optional<Peer> Peer::self() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no thread changes the environment
  const char* text = std::getenv(kVariable);
  if (text == nullptr) return std::nullopt;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::string words = text;
  const std::size_t colon = words.find(':');
  return Peer(Rank{std::stoi(words.substr(0, colon))}, words.substr(colon + 1));
}

void Peer::together() {
  char byte = 0;
  if (::send(kLine, &kCome, 1, MSG_NOSIGNAL) != 1 || ::read(kLine, &byte, 1) != 1)
    std::_Exit(EXIT_FAILURE);
}

}  // namespace millrace::testing_transport
