// What executors share, and the constructors that make_executor calls. Programs arrive verified and
// complete (reductions and, for ranks, messages included).
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "millrace/scheduler/plan/graph.hpp"
#include "millrace/scheduler/run/executor.hpp"
#include "millrace/stages/stage.hpp"
#include "scheduler/run/step_clock.hpp"

namespace millrace::run {

/// An executor with a program and a clock.
class ClockedExecutor : public Executor {
 public:
  [[nodiscard]] const Timeline& timeline() const final { return clock_.timeline(); }
  [[nodiscard]] std::chrono::steady_clock::time_point started() const final {
    return clock_.started();
  }
  [[nodiscard]] const Program& program() const final { return program_; }

 protected:
  /// See StepClock.
  template <class RunsHere>
  ClockedExecutor(Program program, bool record_timeline, RunsHere runs_here)
      : program_(std::move(program)), clock_(program_, record_timeline, runs_here) {}

  const Program program_;
  StepClock clock_;
};

std::unique_ptr<Executor> make_sequential(Program program,
                                          std::span<const HostedStage> stages,
                                          const ExecutorOptions& options);
std::unique_ptr<Executor> make_flow_graph(Program program,
                                          std::span<const HostedStage> stages,
                                          const ExecutorOptions& options);
std::unique_ptr<Executor> make_ranks(Program program,
                                     std::span<const HostedStage> stages,
                                     const ExecutorOptions& options);
std::unique_ptr<Executor> make_rank(Program program,
                                    std::span<const HostedStage> stages,
                                    const GridPosition& position,
                                    const ExecutorOptions& options);

/// Thread-safety: `run` from any thread, for different ranks.
class RankWork {
 public:
  RankWork(const std::function<void(Rank)>& body, int ranks)
      : body_(body), failures_(static_cast<std::size_t>(ranks)) {}

  void run(Rank rank) noexcept {
    try {
      body_(rank);
    } catch (...) {
      failures_[rank.index()] = std::current_exception();
    }
  }

  /// Throws the lowest rank's failure: as it is when it is a StepError, else inside one that names
  /// the rank and the optimizer step.
  void rethrow() const;

 private:
  const std::function<void(Rank)>& body_;
  std::vector<std::exception_ptr> failures_;
};

/// Each rank in turn goes as far as it can. Throws InvalidArgument, naming the action that waits
/// for ever, when the graph has a cycle. Cost: O(actions) for programs that alternate between
/// ranks.
[[nodiscard]] std::vector<Node> valid_order(const Graph& graph);

/// Actions on the longest way from each node to the end of the program, itself included.
[[nodiscard]] std::vector<std::uint32_t> remaining_path(const Graph& graph);

/// `threads` of them, or as many as there are cores, the calling one included; null for one, which
/// needs no others. Throws InvalidArgument for a number outside 1 to 1024.
[[nodiscard]] std::unique_ptr<Workers> make_workers(int threads);

}  // namespace millrace::run
