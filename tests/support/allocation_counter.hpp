// Counts calls of the global operators new and delete in this program.
#pragma once

#include <cstddef>

namespace millrace::test {

/// How many blocks operator new has handed out so far, on all threads.
[[nodiscard]] std::size_t allocations();

/// How many of them have not been given back.
[[nodiscard]] std::size_t blocks_alive();

/// The same of blocks that were asked for with an alignment, as tensors ask for theirs.
[[nodiscard]] std::size_t aligned_allocations();
[[nodiscard]] std::size_t aligned_blocks_alive();

}  // namespace millrace::test
