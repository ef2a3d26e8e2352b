// The gallery: every schedule of the catalogue on one page, drawn, with its closed forms and
// source.
#pragma once

#include <string>

namespace millrace {

/// Writes a page without external resources: for every schedule of the catalogue its names, what
/// it needs, its closed forms and source, the figures of a simulation with F = I = W = 1, and the
/// picture with the memory of every rank. A schedule that has no meaning with these counts says
/// why instead. Throws InvalidArgument for counts below 1. Cost: O(actions of all).
[[nodiscard]] std::string draw_gallery(int ranks = 4, int micro_batches = 8);

}  // namespace millrace
