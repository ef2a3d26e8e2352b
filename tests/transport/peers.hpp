// The ranks of a test as processes of their own: each runs the same test, holds the endpoint of one
// rank and skips what others do. The process that was started first supervises: it holds no
// endpoint, lets all go on when all have come, and ends what is left.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

#include "millrace/core/ids.hpp"
#include "millrace/transport/private_directory.hpp"

namespace millrace::testing_transport {

/// One rank's process, as its supervisor sees it.
struct PeerProcess {
  pid_t pid = -1;
  int line = -1;  ///< to it and from it
  std::string log;
};

/// In the supervisor. Thread-safety: thread-affine.
class Supervisor {
 public:
  /// Processes are started with `words`, the first of which is a path.
  explicit Supervisor(std::vector<std::string> words);
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;
  /// Kills and reaps what still runs.
  ~Supervisor();

  [[nodiscard]] const std::string& directory() const { return directory_.path(); }
  [[nodiscard]] const std::vector<PeerProcess>& peers() const { return peers_; }

  /// Starts those of the first `world` ranks that are not there yet.
  void start(int world);

  /// Waits until the first `world` ranks have come together, and lets them go on. Empty, or who
  /// did not come and what it said.
  [[nodiscard]] std::string together(int world, std::chrono::milliseconds patience);

  /// Waits until all have ended. Empty, or who ended badly and what it said.
  [[nodiscard]] std::string finish(std::chrono::milliseconds patience);

 private:
  [[nodiscard]] std::string complaint(std::size_t rank, const std::string& what) const;

  PrivateDirectory directory_;
  std::vector<std::string> words_;
  std::vector<PeerProcess> peers_;  // by rank
};

/// In a rank's process. Thread-safety: thread-affine.
class Peer {
 public:
  /// Who this process was started as; nothing in one without a supervisor.
  [[nodiscard]] static std::optional<Peer> self();

  [[nodiscard]] Rank rank() const { return rank_; }
  [[nodiscard]] const std::string& directory() const { return directory_; }

  /// Says that it has come, and waits until all have. Ends the process where its supervisor has.
  static void together();

 private:
  Peer(Rank rank, std::string directory) : rank_(rank), directory_(std::move(directory)) {}

  Rank rank_;
  std::string directory_;
};

}  // namespace millrace::testing_transport
