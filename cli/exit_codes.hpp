// The exit codes of the command, in one table. Engines decide by them whether to start again.
#pragma once

namespace millrace::cli {

inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;        ///< a pass or the optimizer threw, or the system refused
inline constexpr int kUsage = 2;         ///< the command line makes no sense
inline constexpr int kCorruptData = 65;  ///< something that was read is damaged
inline constexpr int kLostPeer = 69;     ///< another rank's process ended
inline constexpr int kHang = 75;         ///< another rank is alive but makes no progress
inline constexpr int kMismatch = 78;     ///< the ranks were built for different things
inline constexpr int kNotBuilt = 78;     ///< this build lacks the component that the verb needs
inline constexpr int kInterrupted = 130;
inline constexpr int kTerminated = 143;

}  // namespace millrace::cli
