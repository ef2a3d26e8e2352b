#include "cli/train/copies.hpp"

#include <memory>
#include <optional>

#include "cli/train/run.hpp"
#include "cli/train/side_by_side.hpp"
#include "cli/train/stop_signals.hpp"
#include "millrace/training/rank_parts.hpp"
#include "millrace/transport/in_process.hpp"

namespace millrace::cli {

void run_copies(const TrainJob& job) {
  const Grid grid = job.grid();
  std::optional<StopSignals> signals;
  if (stops_when_asked(job)) signals.emplace();
  InProcessHub hub(grid.processes(),
                   on_grid(channel_depths(job.model, job.program, job.options), grid));
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  for (int place = 0; place < grid.processes(); ++place)
    endpoints.push_back(hub.endpoint(Rank{place}));
  const PlaceWork train = [&](Endpoint& endpoint, ProcessGroup& group) {
    run_training(job, {.endpoint = &endpoint, .group = &group, .is_thread = true});
  };
  side_by_side(grid.processes(), [&](int place) {
    Endpoint& endpoint = *endpoints[static_cast<std::size_t>(place)];
    ProcessGroup group(endpoint);
    work_and_leave(endpoint, group, train, true);
  });
}

}  // namespace millrace::cli
