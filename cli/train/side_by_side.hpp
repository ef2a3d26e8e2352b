// Several ranks of a grid in one process, a thread each.
#pragma once

#include <functional>

#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/process_group.hpp"

namespace millrace::cli {

/// Runs `body(0)` to `body(count - 1)`, each on its own thread except the first, which runs here.
/// When all have ended it throws the error of the first that failed; a rank that only lost another
/// one (exit_code_of) counts if there is no other error. A `body` that throws must cancel the
/// others, which might wait for it.
void side_by_side(int count, const std::function<void(int)>& body);

using PlaceWork = std::function<void(Endpoint&, ProcessGroup&)>;

/// Runs the work of a rank and shuts its endpoint down, also if all ranks end with an exception
/// after the same step. After any other exception the process is lost to the others; if it has
/// `several` ranks, this one cancels. Throws the exception of `work`.
void work_and_leave(Endpoint& endpoint, ProcessGroup& group, const PlaceWork& work, bool several);

}  // namespace millrace::cli
