// One training from the job to its report: all ranks in this process, or one of them.
#pragma once

#include "cli/train/options.hpp"
#include "cli/train/report.hpp"
#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/process_group.hpp"

namespace millrace::cli {

/// Which part of the run this is: with an endpoint, one place of the job's grid, in a process or a
/// thread of its own; else all.
struct TrainSeat {
  Endpoint* endpoint = nullptr;
  ProcessGroup* group = nullptr;
  bool is_thread = false;  ///< one of several places in this process
  int processes = 0;       ///< that have the places; 0: this one has all
};

/// Whether a signal that asks the run to stop lets it finish what it is at.
[[nodiscard]] bool stops_when_asked(const TrainJob& job);

/// Trains and judges. In all places alike; the one of rank 0 tells progress and results, and
/// writes the files that the flags name, which it tries before anything else.
TrainOutcome run_training(const TrainJob& job, const TrainSeat& seat = {});

}  // namespace millrace::cli
