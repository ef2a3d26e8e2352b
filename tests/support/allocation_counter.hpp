// Counts calls of the global operator new in this program.
#pragma once

#include <cstddef>

namespace millrace::test {

/// How many blocks operator new has handed out so far, on all threads.
[[nodiscard]] std::size_t allocations();

}  // namespace millrace::test
