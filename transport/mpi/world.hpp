// MPI in this process: started once, at the first use, and ended with the process. One lock,
// the turn, is around every call, so that any MPI that lets calls move between threads will do. It
// knows processes; which rank of a process a message is from and to is in its tag.
// What is sent is kept here until MPI has let go of it, with or without the endpoint.
#pragma once

#include <array>
#include <atomic>
#include <compare>
#include <cstddef>
#include <list>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "millrace/core/ids.hpp"
#include "millrace/core/tensor.hpp"

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

namespace millrace::mpi {

/// What a message on the communicator of words is; the epoch and the places of both ranks in their
/// processes are the rest of its MPI tag.
enum class Purpose : int { Frame = 0, Note = 1, Payload = 2, Farewell = 3 };

/// Throws TransportError naming `what` unless `code` says that a call of MPI went well.
void check(int code, const char* what);

/// Where a rank is: the process of mpirun, and its place among the ranks of that process.
struct Position {
  int process = 0;
  int place = 0;

  friend auto operator<=>(const Position&, const Position&) = default;
};

/// Of a rank where every process has `places`, which follow one another.
[[nodiscard]] constexpr Position position_of(Rank rank, int places) {
  return {rank.value / places, rank.value % places};
}

/// A message that came: its sender and size, as MPI says before it is received.
struct Waiting {
  int from = 0;
  int bytes = 0;
  int tag = 0;
};

/// Thread-safety: everything but `started` and `abandon` with the turn.
class World {
 public:
  /// Starts MPI at the first call. Throws TransportError when it cannot.
  static World& started();

  World(const World&) = delete;
  World& operator=(const World&) = delete;

  [[nodiscard]] std::mutex& turn() { return turn_; }
  /// This process and all of them.
  [[nodiscard]] int process() const { return process_; }
  [[nodiscard]] int processes() const { return processes_; }

  /// How many ranks of a process tags can distinguish.
  [[nodiscard]] int most_places() const;

  /// The MPI tag of an epoch's messages from one place to another. Where all processes are one rank
  /// each, both places are 0.
  [[nodiscard]] int tag_of(std::uint32_t epoch,
                           Purpose purpose,
                           int from_place,
                           int to_place) const;

  /// Sends a process bytes, then the tensor's own memory where it is not empty, as a message of its
  /// own.
  void send(int to, int tag, std::vector<std::byte> bytes);
  void send(int to, int tag, std::vector<std::byte> bytes, int payload_tag, Tensor payload);

  /// Lets go of what MPI has sent. True when there was any.
  bool sweep();
  [[nodiscard]] bool sending() const { return !sends_.empty(); }

  /// A message with this tag, or any, that has come from anybody.
  [[nodiscard]] bool waits(int tag, Waiting& found);
  /// Begins to receive it, or a payload that its header has announced.
  [[nodiscard]] MPI_Request receive(const Waiting& message, std::byte* into);
  [[nodiscard]] MPI_Request receive_payload(int from, int tag, std::byte* into, std::size_t bytes);
  /// Whether that has ended; `bytes` must have come.
  [[nodiscard]] static bool arrived(MPI_Request& request, std::size_t bytes);

  /// An endpoint was left without `leave`: others may be gone, and MPI, which would wait for
  /// them, does not end in order.
  void abandon() { abandoned_ = true; }

 private:
  struct PendingSend {
    std::vector<std::byte> bytes;
    Tensor payload;
    std::array<MPI_Request, 2> requests{MPI_REQUEST_NULL, MPI_REQUEST_NULL};
  };

  World();
  ~World();
  void start();
  bool part();

  std::mutex turn_;
  MPI_Comm words_ = MPI_COMM_NULL;
  MPI_Comm payloads_ = MPI_COMM_NULL;
  int process_ = 0;
  int processes_ = 1;
  int tags_ = 1;    // from 0 on
  int epochs_ = 1;  // that tags can distinguish
  bool ours_ = false;
  std::atomic<bool> abandoned_{false};
  std::list<PendingSend> sends_;
};

}  // namespace millrace::mpi
