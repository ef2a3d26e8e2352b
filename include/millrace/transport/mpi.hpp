// Endpoints between processes that mpirun started, over the MPI that this was built with: identity,
// meeting and payloads are MPI's, everything else is ours. What they guarantee, and why they are
// built so, is in transport/README.md. Of the component mpi.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/core/channel.hpp"
#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/listener.hpp"

namespace millrace {

/// The MPI that this was built with: "Open MPI 4.1.4", "MPICH 4.0.2". Starts nothing.
[[nodiscard]] std::string mpi_library();

struct MpiOptions {
  int rank = 0;    ///< one of process rank / places; MPI must say that this is it
  int world = 1;   ///< ranks; they are of the first world / places processes of mpirun, rounded up
  int places = 1;  ///< ranks of every process, one after the other: equal in all of them
  std::uint64_t job = 0;             ///< frames of other jobs are refused
  std::uint32_t epoch = 0;           ///< another one for every listener of this rank
  std::vector<ChannelDepth> depths;  ///< channels not named here are unbounded
  std::uint64_t largest_payload = std::uint64_t{1}
                                  << 30U;  ///< bytes of one tensor, at most 2^31 - 1
  bool hash_payloads = true;  ///< detect damage of tensors, about 50 us per MiB and side
  /// As in ZeroMQ's options.
  std::chrono::milliseconds heartbeat{100};
  std::chrono::milliseconds silence{10'000};
  std::optional<std::chrono::milliseconds> hang = {};
};

/// Starts MPI, which waits until all processes of mpirun have done so, unless it runs. The first
/// listener does so else; MPI wants to be ended, with the process, by the thread that started it.
/// Throws TransportError when it does not start.
void start_mpi();

/// A rank among those of mpirun. MPI ends with the process.
/// Thread-safety: externally synchronised; several ranks of a process have a listener and a thread
/// each. All calls of MPI are made one at a time.
class MpiListener final : public Listener {
 public:
  /// Throws InvalidArgument on options that make no sense and for more places than tags of this MPI
  /// tell apart (127 of MPICH 4.0, 362 of Open MPI 4.1), Mismatch when MPI counts the processes
  /// otherwise (mpirun is of another MPI, or started them for something else), TransportError when
  /// MPI does not start.
  explicit MpiListener(const MpiOptions& options);
  ~MpiListener() override;

  [[nodiscard]] const Membership& member() const override;
  [[nodiscard]] PeerAddress address() const override;

  /// At any text: there is one meeting of a job and epoch.
  [[nodiscard]] std::unique_ptr<RendezvousChannel> rendezvous_channel(
      const std::string& url, std::size_t longest_note) override;

  /// Starts the thread that serves MPI while the rank computes. Received tensors lie on a 64-byte
  /// boundary, where they arrived.
  [[nodiscard]] std::unique_ptr<Endpoint> open(const std::vector<PeerAddress>& addresses) override;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace millrace
