// The calling thread, in one valid order: the reference for the other executors.
#include <utility>
#include <vector>

#include "millrace/scheduler/plan/graph.hpp"
#include "run/executors.hpp"
#include "run/interpreter.hpp"
#include "run/step_clock.hpp"

namespace millrace::run {

namespace {

struct Place {
  Rank rank;
  std::size_t position = 0;
};

std::vector<Place> places_in_order(const Program& program) {
  const Graph graph(program);
  std::vector<Place> places;
  places.reserve(graph.size());
  for (const Node node : valid_order(graph)) {
    const Rank rank = graph.rank(node);
    places.push_back({rank, node - graph.first(rank)});
  }
  return places;
}

class SequentialExecutor final : public ClockedExecutor {
 public:
  SequentialExecutor(Program program,
                     std::span<const HostedStage> stages,
                     const ExecutorOptions& options)
      : ClockedExecutor(std::move(program), options.record_timeline, [](Rank) { return true; }),
        order_(places_in_order(program_)),
        interpreter_(program_, stages, {}, options.threads_per_rank) {}

  StepResult run(StepData& data, const StepSettings& settings) override {
    interpreter_.begin_step(data, settings);
    clock_.begin();
    try {
      auto start = StepClock::now();
      for (const Place& place : order_) {
        interpreter_.execute(place.rank, place.position);
        if (!clock_.records()) continue;
        const auto end = StepClock::now();
        clock_.note(place.rank, place.position, start, end);
        start = end;
      }
    } catch (...) {
      interpreter_.abandon_step();
      throw;
    }
    return interpreter_.end_step();
  }

  void for_each_rank(const std::function<void(Rank)>& body) override {
    RankWork work(body, program_.shape.ranks);
    for (int i = 0; i < program_.shape.ranks; ++i) work.run(Rank{i});
    work.rethrow();
  }

 private:
  const std::vector<Place> order_;
  Interpreter interpreter_;
};

}  // namespace

std::unique_ptr<Executor> make_sequential(Program program,
                                          std::span<const HostedStage> stages,
                                          const ExecutorOptions& options) {
  return std::make_unique<SequentialExecutor>(std::move(program), stages, options);
}

}  // namespace millrace::run
