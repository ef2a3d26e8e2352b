// What a rank does now, written by its own thread before everything it does and readable at any
// moment by others: by the thread that owns the sockets and, on the same machine, by other ranks'
// processes, so that a rank that was stopped or killed is still named with its very action.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "millrace/transport/endpoint.hpp"
#include "transport/zeromq/durations.hpp"

namespace millrace::zeromq {

enum class Doing : std::uint8_t {
  Starts,   ///< nothing yet
  Works,    ///< inside the action `what`
  Pauses,   ///< between actions; with a peer: after the message `tag`
  Waits,    ///< for the message `tag` from `peer`
  Departs,  ///< says goodbye
  Left      ///< has said it
};

/// One moment of a rank.
struct Activity {
  Doing doing = Doing::Starts;
  bool of_unit = false;  ///< Works: replica, stage, micro-batch and slice of `tag` are meant
  bool sent = false;     ///< Pauses: after sending `tag`, not after receiving it
  Rank peer{-1};
  std::array<char, 16> what{};  ///< Works
  MessageTag tag = {};          ///< of what is waited for or came last; place of the action
  std::uint64_t count = 0;      ///< things begun so far
  std::chrono::steady_clock::time_point since = {};
  /// Works: the longest that an action of this kind (op and stage) took on this rank; zero when
  /// none has ended yet.
  std::chrono::nanoseconds longest{};
  /// Works: what 99 of 100 of its kind did not exceed; zero before a hundred have ended, and in
  /// evaluations, whose batches have any size. Where it is known, `longest` is not told.
  std::chrono::nanoseconds usual{};
};

/// "is in F of stage 2, micro-batch 3 of step 7", "waits for activation for ... from rank 1".
std::string to_string(const Activity& activity);

/// What the others wait for when this rank does not get on: "F of stage 2, micro-batch 3 of step
/// 7"; for a rank that was itself waiting, the action that takes the message.
std::string action_of(const Activity& activity);

inline constexpr std::size_t kActivityWords = 9;
using ActivityWords = std::array<std::uint64_t, kActivityWords>;

/// As numbers; `since` on the steady clock, which all processes of one machine share.
ActivityWords encode(const Activity& activity);
/// Numbers from outside are clamped to what a report can print.
Activity decode(const ActivityWords& words);

/// The place where a rank writes. Two copies in turn: a reader takes the published one, which the
/// writer leaves alone until it has published the other.
/// Thread-safety: `begin` on one thread; `now` on any.
class ProgressSlot {
 public:
  /// With a path the slot is a file of this user alone that lasts as long as this object, or until
  /// the rank starts again if the process is killed. Throws TransportError as hold_file.
  explicit ProgressSlot(std::string path);
  ProgressSlot(const ProgressSlot&) = delete;
  ProgressSlot& operator=(const ProgressSlot&) = delete;
  ~ProgressSlot();

  /// The rank begins something; counts, takes the time, and remembers how long the last one took.
  void begin(Activity activity) noexcept;
  [[nodiscard]] Activity now() const noexcept;

  /// Another rank's slot on this machine; empty when there is none or it cannot be read.
  static std::optional<Activity> of(const std::string& path) noexcept;

 private:
  struct Page {
    std::atomic<std::uint64_t> published{0};  // release: publishes the words of copy published % 2
    std::array<std::array<std::atomic<std::uint64_t>, kActivityWords>, 2> copies{};
  };

  /// An op of a stage, in training or in evaluation.
  struct Kind {
    std::array<char, 16> what;
    Stage stage;
    bool evaluates = false;
    Durations took = {};
  };

  Kind& kind_of(const Activity& activity);

  std::string path_;
  int file_ = -1;         // locked, when there is a path
  Page* page_ = nullptr;  // in shared memory when there is a path
  Activity last_;         // of the writer
  std::vector<Kind> kinds_;
};

}  // namespace millrace::zeromq
