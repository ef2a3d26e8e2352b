// Why an endpoint gave up, as types: a program's exit code follows from them.
#pragma once

#include <cstdint>

#include "millrace/core/error.hpp"

namespace millrace {

/// The cause that travels to all ranks when one of them gives up.
enum class FailureCause : std::uint8_t {
  Cancelled,  ///< somebody called cancel
  PeerLost,   ///< a process ended or its machine cannot be reached
  Hang,       ///< a process is alive but makes no progress
  Protocol    ///< a peer sent what it must not send
};

/// A rank's process ended without a goodbye, or cannot be reached. The message names the rank and
/// what every rank was doing.
class PeerLost : public TransportError {
 public:
  using TransportError::TransportError;
};

/// A rank's process is alive but makes no progress: it is stopped, or one of its actions does not
/// end.
class PeerHangs : public TransportError {
 public:
  using TransportError::TransportError;
};

}  // namespace millrace
