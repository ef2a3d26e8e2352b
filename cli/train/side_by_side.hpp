// Several places of a grid in one process: what processes do of a launch, threads do here.
#pragma once

#include <functional>

#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/process_group.hpp"

namespace millrace::cli {

/// Runs `body(0)` to `body(count - 1)`, each on a thread of its own but the first, which runs here.
/// When all have ended it throws what the first of them failed of; those that only lost another
/// place (exit_code_of) count when nobody else failed. Who throws has told the others, which might
/// wait for it.
void side_by_side(int count, const std::function<void(int)>& body);

using PlaceWork = std::function<void(Endpoint&, ProcessGroup&)>;

/// Does a place's work and takes leave of the others, also where all of them end with an exception
/// after the same step. Any other leaves them waiting: a process that ends of it is lost to them;
/// where the process has `several` places, this one cancels. Throws what `work` throws.
void work_and_leave(Endpoint& endpoint, ProcessGroup& group, const PlaceWork& work, bool several);

}  // namespace millrace::cli
