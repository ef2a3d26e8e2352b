// How large the process is, as the system sees it.
#pragma once

#include <cstddef>
#include <fstream>
#include <unistd.h>

namespace millrace::test {

/// Bytes of the process that lie in memory.
inline std::size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t whole = 0;
  std::size_t resident = 0;
  statm >> whole >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace millrace::test
