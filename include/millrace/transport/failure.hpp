// Why an endpoint gave up, as types: a program's exit code follows from them.
#pragma once

#include <cstdint>
#include <exception>

#include "millrace/core/error.hpp"

namespace millrace {

/// The cause that travels to all ranks when one of them gives up.
enum class FailureCause : std::uint8_t {
  Cancelled,  ///< somebody called cancel
  PeerLost,   ///< a process ended or its machine cannot be reached
  Hang,       ///< a process is alive but makes no progress
  Protocol    ///< a peer sent what it must not send
};

/// A rank's process ended without a goodbye, or cannot be reached, or said goodbye while others
/// still needed it. The message names the rank and, unless it said goodbye, what every rank was
/// doing.
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

/// What a process of a job ends with. Engines decide by it whether to start again; the launcher
/// tells by it the rank that failed from those that lost it.
namespace exit_code {
inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;        ///< a pass or the optimizer threw, or the system refused
inline constexpr int kUsage = 2;         ///< what was asked for makes no sense
inline constexpr int kCorruptData = 65;  ///< something that was read is damaged
inline constexpr int kLostPeer = 69;     ///< another rank's process ended
inline constexpr int kHang = 75;         ///< another rank is alive but makes no progress
inline constexpr int kMismatch = 78;     ///< the ranks were built for different things
}  // namespace exit_code

/// By the kind of failure. A step's failure has its cause nested inside, where an InvalidArgument
/// is no fault of the user: that counts as kFailed.
[[nodiscard]] int exit_code_of(const std::exception& error);

}  // namespace millrace
