// The threads of one rank (ExecutorOptions::threads_per_rank), by oneTBB.
#pragma once

#include <memory>

#include "millrace/stages/stage.hpp"

namespace millrace::run {

/// `threads` of them, or as many as there are cores, the calling one included; null for one, which
/// needs no others. Throws InvalidArgument for a number outside 1 to 1024.
[[nodiscard]] std::unique_ptr<Workers> make_workers(int threads);

}  // namespace millrace::run
