// What a rank does at one moment, as values, as words for a report, and as numbers for a heartbeat
// or a shared page.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>

#include "millrace/transport/endpoint.hpp"

namespace millrace {

enum class Doing : std::uint8_t {
  Starts,   ///< nothing yet
  Works,    ///< inside the action `what`
  Pauses,   ///< between actions; with a peer: after the message `tag`
  Waits,    ///< for the message `tag` from `peer`
  Departs,  ///< leaves
  Left      ///< has said it
};

/// One moment of a rank.
struct Activity {
  Doing doing = Doing::Starts;
  bool of_unit = false;  ///< Works: replica, stage, micro-batch and slice of `tag` are meant
  bool sent = false;     ///< Pauses: after sending `tag`, not after receiving it
  Rank peer{-1};
  std::array<char, 16> what{};  ///< Works
  int pipeline = 0;             ///< as Work::pipeline; of this host alone
  MessageTag tag = {};          ///< of what is waited for or came last; place of the action
  std::uint64_t count = 0;      ///< things begun so far
  std::chrono::steady_clock::time_point since = {};
  /// Works: the longest that an action of this kind (op and stage) took on this rank; zero when
  /// none has ended yet.
  std::chrono::nanoseconds longest{};
  /// Works: what 99 of 100 of its kind did not exceed; zero before a hundred have ended, and in
  /// evaluations, whose batches have any size. Where it is known, `longest` is not sent.
  std::chrono::nanoseconds usual{};
};

/// What a rank has said that it does from now on.
Activity activity_of(const Work& work);

/// "is in F of stage 2, micro-batch 3 of step 7", "waits for activation for ... from rank 1".
std::string to_string(const Activity& activity);

/// What the others wait for when this rank makes no progress: "F of stage 2, micro-batch 3 of step
/// 7"; for a rank that was itself waiting, the action that takes the message.
std::string action_of(const Activity& activity);

inline constexpr std::size_t kActivityWords = 9;
using ActivityWords = std::array<std::uint64_t, kActivityWords>;

/// As numbers; `since` on the steady clock, which all processes of one machine share.
ActivityWords encode(const Activity& activity);
/// Numbers from outside are clamped to what a report can print.
Activity decode(const ActivityWords& words);

}  // namespace millrace
