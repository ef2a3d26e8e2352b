// One rank against an endpoint: its list, in order, on the calling thread.
#include <exception>
#include <string>
#include <utility>

#include "run/kinds.hpp"
#include "run/rank_runner.hpp"
#include "run/rank_work.hpp"

namespace millrace::run {

void RankRunner::execute(StepClock& clock) {
  const std::size_t actions = program_.on(endpoint_->rank()).size();
  auto start = StepClock::now();
  for (std::size_t position = 0; position < actions; ++position) {
    interpreter_.execute(endpoint_->rank(), position);
    if (!clock.records()) continue;
    const auto end = StepClock::now();
    clock.note(endpoint_->rank(), position, start, end);
    start = end;
  }
}

StepResult RankRunner::run(StepData& data, const StepSettings& settings, StepClock& clock) {
  try {
    interpreter_.begin_step(data, settings);
    execute(clock);
    return interpreter_.end_step();
  } catch (const std::exception& failure) {
    interpreter_.abandon_step();
    endpoint_->cancel(failure.what());
    throw;
  }
}

namespace {

class RankExecutor final : public Executor {
 public:
  RankExecutor(Program program,
               std::span<const HostedStage> stages,
               Endpoint& endpoint,
               const ExecutorOptions& options)
      : program_(std::move(program)),
        rank_(endpoint.rank()),
        runner_(program_, stages, endpoint),
        clock_(program_, options.record_timeline, [&](Rank rank) { return rank == rank_; }) {}

  StepResult run(StepData& data, const StepSettings& settings) override {
    clock_.begin();
    return runner_.run(data, settings, clock_);
  }

  [[nodiscard]] const Timeline& timeline() const override { return clock_.timeline(); }
  [[nodiscard]] const Program& program() const override { return program_; }

  void for_each_rank(const std::function<void(Rank)>& body) override {
    RankWork work(body, program_.shape.ranks);
    work.run(rank_);
    work.rethrow();
  }

 private:
  const Program program_;
  const Rank rank_;
  RankRunner runner_;
  StepClock clock_;
};

}  // namespace

std::unique_ptr<Executor> make_rank(Program program,
                                    std::span<const HostedStage> stages,
                                    Endpoint& endpoint,
                                    const ExecutorOptions& options) {
  return std::make_unique<RankExecutor>(std::move(program), stages, endpoint, options);
}

}  // namespace millrace::run
