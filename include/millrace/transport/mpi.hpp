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

#include "millrace/core/ids.hpp"
#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/listener.hpp"

namespace millrace {

/// The MPI that this was built with: "Open MPI 4.1.4", "MPICH 4.0.2". Starts nothing.
[[nodiscard]] std::string mpi_library();

/// The rank is one of those of process rank / places, which MPI must confirm; the ranks are of the
/// first world / places processes of mpirun, rounded up. Every listener of a rank has an epoch of
/// its own. The largest payload is at most 2^31 - 1 bytes.
struct MpiOptions : LinkOptions {
  int places = 1;  ///< ranks of every process, one after the other: equal in all of them
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
  /// distinguish (127 of MPICH 4.0, 362 of Open MPI 4.1), Mismatch when MPI counts the processes
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
