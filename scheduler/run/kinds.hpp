// The constructors behind make_executor. Programs arrive verified and complete (reductions and,
// for ranks, messages included).
#pragma once

#include <memory>
#include <span>

#include "millrace/scheduler/run/executor.hpp"

namespace millrace::run {

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

}  // namespace millrace::run
