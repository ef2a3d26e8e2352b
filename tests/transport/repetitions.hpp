// How often a hostile thing is tried: a little in the suite, MILLRACE_TIMES as often in the long
// campaign.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

namespace millrace::testing_transport {

inline std::uint64_t times(std::uint64_t few) {
  const char* said = std::getenv("MILLRACE_TIMES");  // NOLINT(concurrency-mt-unsafe)
  return said == nullptr ? few : few * std::stoull(said);
}

}  // namespace millrace::testing_transport
