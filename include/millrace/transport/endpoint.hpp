// The endpoint contract: how one rank's actions reach another rank's. Backends (in_process, zeromq)
// implement it and pass one conformance suite.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/core/error.hpp"
#include "millrace/core/ids.hpp"
#include "millrace/core/tensor_list.hpp"

namespace millrace {

/// The cause that travels to all ranks when one of them gives up.
enum class FailureCause : std::uint8_t {
  Cancelled,  ///< a rank called cancel
  PeerLost,   ///< a process ended or its machine cannot be reached
  Hang,       ///< a process is alive but makes no progress
  Protocol    ///< a peer sent what it must not send
};

/// A rank's process ended without `leave`, or cannot be reached, or left while others
/// still needed it. The message names the rank and, unless it left, what every rank was
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

/// Exit codes of a job's processes. Launchers use them to decide on a restart and to name the rank
/// that failed.
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
/// is not the user's fault: that counts as kFailed.
[[nodiscard]] int exit_code_of(const std::exception& error);

/// Names one message of one step. Receives are by tag, never by order. `stage` is the **receiving**
/// stage for Forward and Backward; for Collective it counts the collectives of the step, and
/// `slice` is its Label. Steps from 2^63 on are evaluations, counted from there.
struct MessageTag {
  std::uint64_t step = 0;
  Direction direction = Direction::Forward;
  Replica replica;
  Stage stage;
  MicroBatch micro_batch;
  Slice slice;
  /// Forward and Backward: which link of the receiving stage it came along; 0 is the neighbour's.
  std::uint8_t edge = 0;

  friend constexpr auto operator<=>(const MessageTag&, const MessageTag&) = default;
};

/// "activation for stage 3, micro-batch 7 of step 12", "agreement on the loss of step 12".
[[nodiscard]] std::string to_string(const MessageTag& tag);

/// "step 12", "evaluation 3".
[[nodiscard]] std::string name_of_step(std::uint64_t step);

/// What a rank does between two calls of its endpoint, for the report that its peers make when it
/// makes no progress. An empty `what` is work outside the program: data, measurement, saving.
struct Work {
  std::string_view what;  ///< "F", "STEP"; the first 16 characters are kept
  bool of_unit = true;    ///< replica, stage, micro_batch and slice are meant
  std::uint64_t step = 0;
  Replica replica = {};
  Stage stage = {};
  MicroBatch micro_batch = {};
  Slice slice = {};
  /// Ranks of one data-parallel replica, by which reports name that of a rank: rank / pipeline. 0:
  /// there is one, or it is as said before.
  int pipeline = 0;
};

/// Memory in which the payloads lie that an endpoint sends one other.
struct SharedBytes {
  Rank receiver;
  std::size_t of_passes = 0;  ///< made for activations and gradients
  std::size_t of_collectives = 0;
};

/// The latest moment a wait may last, on the steady clock.
using Deadline = std::chrono::steady_clock::time_point;

/// One rank's connection to the others.
///
/// `send` never waits for the receiver: it takes the tensors and returns. `receive` waits for the
/// message with exactly this tag from that rank. All that the sender did before `send` is visible
/// after the matching `receive` returns. A channel (from, to, direction) holds at most the declared
/// depth of messages that were sent and not yet received; one more is a TransportError that names
/// the channel. After any TransportError the endpoint is unusable: recreate it. Thread-safety:
/// `cancel` and `doing` from any thread; everything else thread-affine to the rank's thread.
class Endpoint {
 public:
  Endpoint() = default;
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;
  virtual ~Endpoint() = default;

  [[nodiscard]] virtual Rank rank() const = 0;
  [[nodiscard]] virtual int world() const = 0;

  /// Hands `payload` over. Throws TransportError (peer lost, depth exceeded), Cancelled.
  virtual void send(Rank to, const MessageTag& tag, TensorList payload) = 0;

  /// Waits for the message. Throws TransportError at the deadline, Cancelled after `cancel`.
  [[nodiscard]] virtual TensorList receive(Rank from, const MessageTag& tag, Deadline deadline) = 0;

  /// The message, if it has come; never waits. An endpoint that does not know returns nothing, and
  /// the message to the receive that waits for it. Throws as receive.
  [[nodiscard]] virtual std::optional<TensorList> try_receive(Rank /*from*/,
                                                              const MessageTag& /*tag*/) {
    return std::nullopt;
  }

  /// Says what the rank does from now on, until its next call. Transports whose ranks watch each
  /// other report it; the others ignore it. About 0.1 us.
  virtual void working(const Work& /*work*/) noexcept {}

  /// What the rank does at this moment: "waits for gradient for stage 0, micro-batch 2 of step 7
  /// from rank 1"; empty where ranks do not watch each other. From any thread.
  [[nodiscard]] virtual std::string doing() const { return {}; }

  /// What it has made so far of memory that its receivers see too, by receiver; nothing where the
  /// transport shares none.
  [[nodiscard]] virtual std::vector<SharedBytes> shared_bytes() const { return {}; }

  /// Ends this and every other rank's waits with Cancelled{reason}. Idempotent.
  virtual void cancel(const std::string& reason) noexcept = 0;

  /// Says that nothing more will be sent; afterwards only destruction is allowed. Waits, up to the
  /// deadline, until all sent messages were taken over by the peers.
  virtual void leave(Deadline deadline) = 0;
};

}  // namespace millrace
