// One training from the job to its report: all ranks in this process, or one of them.
#pragma once

#include "cli/train/options.hpp"
#include "cli/train/report.hpp"
#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/process_group.hpp"

namespace millrace::cli {

/// Which part of the run this process is: with an endpoint, its rank; else all.
struct TrainSeat {
  Endpoint* endpoint = nullptr;
  ProcessGroup* group = nullptr;
};

/// Trains and judges. In all processes alike; the one of rank 0 tells progress and results, and
/// writes the files that the flags name, which it tries before anything else.
TrainOutcome run_training(const TrainJob& job, const TrainSeat& seat = {});

}  // namespace millrace::cli
