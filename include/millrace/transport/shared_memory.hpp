// Endpoints between processes of one host over shared memory: a tensor is copied once, into memory
// that its receiver has mapped. What they guarantee, and why they are built so, is in
// transport/README.md.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/listener.hpp"

namespace millrace {

struct SharedMemoryOptions : LinkOptions {
  /// Where the ranks' sockets lie, over which they hand each other their memory; checked to be
  /// private. A world of one needs none.
  std::string directory = {};
  /// How long a wait looks for its message before it sleeps. Without it 200 us where this process
  /// may use as many cores as there are ranks, and as long as that finds something; else not at
  /// all.
  std::optional<std::chrono::microseconds> spin = {};
};

/// Why processes of this host cannot share memory, as the end of a message: the system has no
/// sealed memory files or does not signal the end of a process, or the length of files is limited
/// (RLIMIT_FSIZE). Nothing where they can.
[[nodiscard]] std::optional<std::string> shared_memory_problem();

/// Bytes of the memory that `source` makes for what it sends `receiver` in passes, which is there
/// before the first of it: by the tensors that `depths` have, each size rounded up by at most an
/// eighth (up to 64 KiB: to a power of two, at least 4 KiB). Other tensors make memory as
/// it comes.
[[nodiscard]] std::size_t planned_shared_bytes(std::span<const ChannelDepth> depths,
                                               Rank source,
                                               Rank receiver);

/// A rank that listens at a socket in the directory; see Listener.
/// Thread-safety: externally synchronised.
class SharedMemoryListener final : public Listener {
 public:
  /// Throws InvalidArgument on options that do not fit (a directory that others may enter, a path
  /// above 107 bytes or with a line break in it), TransportError where there is a
  /// shared_memory_problem, when the process may open fewer descriptors than the ranks take, or
  /// when a living process has this rank of this epoch; what a dead one left is taken over.
  explicit SharedMemoryListener(const SharedMemoryOptions& options);
  ~SharedMemoryListener() override;

  [[nodiscard]] const Membership& member() const override;
  [[nodiscard]] PeerAddress address() const override;

  /// At "ipc://path", in a directory that is private too.
  [[nodiscard]] std::unique_ptr<RendezvousChannel> rendezvous_channel(
      const std::string& url, std::size_t longest_note) override;

  /// Starts the thread that gives signs of life while the rank computes. Returns at once. Received
  /// tensors lie on a 64-byte boundary, and from 16 KiB on where the sender wrote them: the sender
  /// has that memory back when the tensor is destroyed.
  [[nodiscard]] std::unique_ptr<Endpoint> open(const std::vector<PeerAddress>& addresses) override;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// Connected endpoints of `world` ranks in this process, by rank; for tests and benchmarks.
[[nodiscard]] std::vector<std::unique_ptr<Endpoint>> shared_memory_mesh(
    const SharedMemoryOptions& options);

}  // namespace millrace
