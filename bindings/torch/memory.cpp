#include "millrace/torch/memory.hpp"

#include <limits>
#include <malloc.h>

namespace millrace {

bool keep_freed_memory() {
#ifdef M_TRIM_THRESHOLD
  // Blocks above the second one come from the system, each for itself, and go back there.
  constexpr int kAll = std::numeric_limits<int>::max();
  return mallopt(M_TRIM_THRESHOLD, kAll) == 1 && mallopt(M_MMAP_THRESHOLD, kAll) == 1;
#else
  return false;
#endif
}

}  // namespace millrace
