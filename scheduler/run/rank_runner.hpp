// A rank's list executed in order against an endpoint: what the rank executor and each thread of
// the ranks executor do.
#pragma once

#include <span>

#include "millrace/scheduler/run/executor.hpp"
#include "run/interpreter.hpp"
#include "run/step_clock.hpp"

namespace millrace::run {

/// Thread-safety: externally synchronised; `run` on the thread the endpoint belongs to.
class RankRunner {
 public:
  /// `program` (with messages), the bodies and the position's endpoint must outlive the runner.
  RankRunner(const Program& program,
             std::span<const HostedStage> stages,
             const GridPosition& position,
             const ExecutorOptions& options)
      : program_(program),
        endpoint_(position.endpoint()),
        place_(position.place()),
        pipeline_(position.grid().data() > 1 ? position.grid().pipeline() : 0),
        interpreter_(program, stages, position, options.threads_per_rank) {}

  /// Replaces a cancelled endpoint by another of the same rank.
  void use(Endpoint& endpoint) {
    endpoint_ = &endpoint;
    interpreter_.use(endpoint);
  }

  /// One step; reports to the endpoint what it works at. On failure everything is dropped and the
  /// endpoint cancelled with the message.
  StepResult run(StepData& data, const StepSettings& settings, StepClock& clock);

 private:
  void execute(StepClock& clock, const StepSettings& settings);

  const Program& program_;
  Endpoint* endpoint_;
  const Rank place_;
  const int pipeline_;  ///< as Work::pipeline
  Interpreter interpreter_;
};

}  // namespace millrace::run
