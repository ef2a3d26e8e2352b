// A meeting that nobody has prepared: where an engine has given the ranks no more than a folder
// that all of them see, rank 0 makes keys and leaves them there with the address at which it
// listens, readable by this user alone, until all have met.
#pragma once

#include <string>

#include "millrace/transport/launch.hpp"

namespace millrace::zeromq {

/// Thread-safety: thread-affine.
class FolderRendezvous {
 public:
  /// Without LaunchConfig::shared, `asked` as it is. Else rank 0 makes the folder, the others wait
  /// for it. Throws TransportError when it cannot be made or there is no address, PeerHangs when it
  /// does not come within the place's patience.
  explicit FolderRendezvous(const LaunchConfig& asked);
  FolderRendezvous(const FolderRendezvous&) = delete;
  FolderRendezvous& operator=(const FolderRendezvous&) = delete;
  /// Rank 0 removes the folder.
  ~FolderRendezvous();

  [[nodiscard]] const LaunchConfig& place() const { return place_; }

 private:
  void make();
  void await();

  LaunchConfig place_;
  bool made_ = false;
};

}  // namespace millrace::zeromq
