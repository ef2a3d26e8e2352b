// The exit codes of the command, in one table: those of every process of a job, and its own.
#pragma once

#include "millrace/transport/endpoint.hpp"

namespace millrace::cli {

using exit_code::kCorruptData;
using exit_code::kDone;
using exit_code::kFailed;
using exit_code::kHang;
using exit_code::kLostPeer;
using exit_code::kMismatch;
using exit_code::kUsage;

inline constexpr int kNotBuilt = 78;  ///< this build lacks the component that the subcommand needs
inline constexpr int kInterrupted = 130;
inline constexpr int kTerminated = 143;

}  // namespace millrace::cli
