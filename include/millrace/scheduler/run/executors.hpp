// The executors by name, and the one a worker process runs.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/scheduler/run/executor.hpp"
#include "millrace/scheduler/run/grid.hpp"

namespace millrace {

struct ExecutorOptions {
  /// Threads of the flow graph; 0 means one per core. More than cores only on purpose: stages that
  /// wait rather than compute.
  int threads = 0;
  /// Lets the flow graph prefer the action with the longest remaining path. Costs 50 to 600 ns an
  /// action; pays when actions are long and ranks outnumber cores.
  bool priorities = false;
  /// Mean time of an action below which the flow graph runs a step inline, in one valid order on
  /// the calling thread: giving so short an action to another thread takes longer than the action.
  /// Found from the times of earlier steps, the first of which always uses all threads. 0 means
  /// never.
  std::chrono::nanoseconds inline_below = std::chrono::nanoseconds(250);
  /// Threads of a rank, its own one included, that share the work of one pass where its kernels cut
  /// it into blocks. Bits are the same for any number; no more run than there are cores. From 1 to
  /// 1024.
  int threads_per_rank = 1;
  /// Records start and end of every action; two clock readings each (one on rank executors).
  bool record_timeline = true;
};

/// The names that make_executor knows: "flow-graph", "ranks", "sequential".
[[nodiscard]] std::span<const std::string_view> executor_kinds();

/// Builds an executor for all ranks of `program` in this process.
///
/// `program` is compute only or already has messages, reductions or recompute; what is missing is
/// added: reductions where a stage has copies, messages for "ranks". `stages` holds a body for
/// every (replica, stage); the bodies must outlive the executor.
/// - "sequential": the calling thread, one valid order. The reference.
/// - "flow-graph": oneTBB, one node per chain of actions that only program order joins; the fastest
///   in one process.
/// - "ranks": one thread per rank, values through in-process mailboxes.
/// Throws InvalidArgument for another name (with the nearest), for a program that verify() objects
/// to (with its first sentence), for a missing body. Cost: O(actions).
[[nodiscard]] std::unique_ptr<Executor> make_executor(std::string_view kind,
                                                      Program program,
                                                      std::span<const HostedStage> stages,
                                                      const ExecutorOptions& options = {});

/// What will be right but not as good as the plan promises: a sentence for each stage whose
/// backward the program splits and the body does not. Worth a look before the first step. Cost:
/// O(actions).
[[nodiscard]] std::vector<std::string> plan_warnings(const Program& program,
                                                     std::span<const HostedStage> stages);

/// Builds the executor of one place, the position's: it executes that rank's list in order on the
/// calling thread, against the ranks of its own copy. `stages` holds the bodies of that rank
/// (others are ignored); the endpoint must outlive the executor. A failure cancels the endpoint
/// with the message, so that the other ranks' waits end too; a rank whose wait was ended so throws
/// Cancelled with that message. Throws InvalidArgument as make_executor.
[[nodiscard]] std::unique_ptr<Executor> make_rank_executor(Program program,
                                                           std::span<const HostedStage> stages,
                                                           const GridPosition& position,
                                                           const ExecutorOptions& options = {});

/// The same where the endpoint's world is one copy: its rank is the place.
[[nodiscard]] std::unique_ptr<Executor> make_rank_executor(Program program,
                                                           std::span<const HostedStage> stages,
                                                           Endpoint& endpoint,
                                                           const ExecutorOptions& options = {});

}  // namespace millrace
