// One rank against an endpoint: its list, in order, on the calling thread.
#include <exception>
#include <utility>

#include "run/executors.hpp"
#include "run/rank_runner.hpp"

namespace millrace::run {

namespace {

/// Not for messages: the endpoint knows what it waits for.
void report(Endpoint& endpoint,
            const Action& action,
            const StepSettings& settings,
            const Shape& shape) {
  if (is_send(action.op) || is_receive(action.op)) return;
  endpoint.working({.what = letters(action.op),
                    .of_unit = has_unit(action.op),
                    .step = settings.step,
                    .replica = action.replica(),
                    .stage = action.stage,
                    .micro_batch = settings.in_step(action.micro_batch, shape),
                    .slice = action.slice});
}

}  // namespace

void RankRunner::execute(StepClock& clock, const StepSettings& settings) {
  const std::span<const Action> actions = program_.on(place_);
  auto start = StepClock::now();
  for (std::size_t position = 0; position < actions.size(); ++position) {
    report(*endpoint_, actions[position], settings, program_.shape);
    interpreter_.execute(place_, position);
    if (!clock.records()) continue;
    const auto end = StepClock::now();
    clock.note(place_, position, start, end);
    start = end;
  }
}

StepResult RankRunner::run(StepData& data, const StepSettings& settings, StepClock& clock) {
  endpoint_->working({.what = {}, .of_unit = false, .step = settings.step, .pipeline = pipeline_});
  try {
    interpreter_.begin_step(data, settings);
    execute(clock, settings);
    endpoint_->working({.what = {}, .of_unit = false, .step = settings.step});
    return interpreter_.end_step();
  } catch (const std::exception& failure) {
    interpreter_.abandon_step();
    endpoint_->cancel(failure.what());
    throw;
  }
}

namespace {

class RankExecutor final : public ClockedExecutor {
 public:
  RankExecutor(Program program,
               std::span<const HostedStage> stages,
               const GridPosition& position,
               const ExecutorOptions& options)
      : ClockedExecutor(std::move(program),
                        options.record_timeline,
                        [&](Rank rank) { return rank == position.place(); }),
        endpoint_(*position.endpoint()),
        rank_(position.place()),
        runner_(program_, stages, position, options) {}

  StepResult run(StepData& data, const StepSettings& settings) override {
    clock_.begin();
    step_ = settings.step;
    return runner_.run(data, settings, clock_);
  }

  void for_each_rank(const std::function<void(Rank)>& body) override {
    RankWork work(body, program_.shape.ranks);
    endpoint_.working({.what = letters(Op::OptimizerStep), .of_unit = false, .step = step_});
    work.run(rank_);
    endpoint_.working({.what = {}, .of_unit = false, .step = step_});
    work.rethrow();
  }

 private:
  Endpoint& endpoint_;
  const Rank rank_;
  std::uint64_t step_ = 0;
  RankRunner runner_;
};

}  // namespace

std::unique_ptr<Executor> make_rank(Program program,
                                    std::span<const HostedStage> stages,
                                    const GridPosition& position,
                                    const ExecutorOptions& options) {
  return std::make_unique<RankExecutor>(std::move(program), stages, position, options);
}

}  // namespace millrace::run
