// In-process mailboxes: endpoints between the threads of one process. The reference for the other
// transports, and what ThreadSanitizer can prove the rank executor on.
#pragma once

#include <memory>
#include <span>

#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/listener.hpp"

namespace millrace {

/// Connects `world` endpoints in this process. Tensors are handed over, never copied.
///
/// Order: any; receives are by tag. Delivery: certain while both ends live. A rank whose endpoint
/// is destroyed without `leave` counts as lost: waits for it end with TransportError at once.
/// Channels without a declared depth are unbounded. No allocation once mailboxes have grown.
/// Thread-safety: externally synchronised (the endpoints: see Endpoint). The endpoints keep what
/// they share alive; the hub may go first.
class InProcessHub {
 public:
  /// Throws InvalidArgument when world or a depth is below 1 or a rank is outside the world.
  explicit InProcessHub(int world, std::span<const ChannelDepth> depths = {});
  InProcessHub(const InProcessHub&) = delete;
  InProcessHub& operator=(const InProcessHub&) = delete;
  ~InProcessHub();

  /// One rank's endpoint. Throws InvalidArgument when it was taken before.
  [[nodiscard]] std::unique_ptr<Endpoint> endpoint(Rank rank);

  /// The same by way of a meeting, for programs that do not know what their ranks are connected by:
  /// each thread passes its own to meet(). Throws InvalidArgument when it was taken before.
  [[nodiscard]] std::unique_ptr<Listener> listener(Rank rank);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;  // with the endpoints
};

}  // namespace millrace
