// A ring whose writer is hostile: entries, counters and places as the input says; what the reader
// takes must lie in a segment that was given and be what its header says.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "transport/ring_campaign.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (!millrace::run_ring_input(std::span(data, size)).wrong.empty()) std::abort();
  return 0;
}
