// See copies.hpp. What processes do of a launch, threads do here.
#include "cli/train/copies.hpp"

#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "cli/train/run.hpp"
#include "cli/train/stop_signals.hpp"
#include "cli/verbs.hpp"
#include "millrace/core/error.hpp"
#include "millrace/training/rank_parts.hpp"
#include "millrace/training/trainer.hpp"
#include "millrace/transport/in_process.hpp"

namespace millrace::cli {

namespace {

/// Of several that fail, the first is the cause; the others only lost it.
class FirstFailure {
 public:
  void note(std::exception_ptr failure) {
    const std::lock_guard lock(mutex_);
    if (!first_) first_ = std::move(failure);
  }

  void rethrow() const {
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr first_;
};

void leave(Endpoint& endpoint) {
  endpoint.goodbye(std::chrono::steady_clock::now() + std::chrono::seconds(30));
}

/// What every place throws after the same step leaves nobody alone.
void run_place(const TrainJob& job, Endpoint& endpoint) {
  ProcessGroup group(endpoint);
  try {
    run_training(job, {.endpoint = &endpoint, .group = &group, .is_thread = true});
  } catch (const Diverged&) {
    leave(endpoint);
    throw;
  } catch (const ExitCode&) {
    leave(endpoint);
    throw;
  }
  leave(endpoint);
}

void run_noting(const TrainJob& job, Endpoint& endpoint, FirstFailure& failure) {
  try {
    run_place(job, endpoint);
  } catch (const std::exception& error) {
    failure.note(std::current_exception());
    endpoint.cancel(error.what());
  } catch (const ExitCode&) {
    failure.note(std::current_exception());
  }
}

}  // namespace

void run_copies(const TrainJob& job) {
  const Grid grid = job.grid();
  std::optional<StopSignals> signals;
  if (stops_when_asked(job)) signals.emplace();
  InProcessHub hub(grid.processes(),
                   on_grid(channel_depths(job.model, job.program, job.options), grid));
  FirstFailure failure;
  std::vector<std::jthread> places;
  for (int process = 0; process < grid.processes(); ++process)
    places.emplace_back([&job, &failure, endpoint = hub.endpoint(Rank{process})] {
      run_noting(job, *endpoint, failure);
    });
  for (std::jthread& place : places) place.join();
  failure.rethrow();
}

}  // namespace millrace::cli
