// Control frames from a hostile peer: every accepted frame must be one that a peer could have sent.
// The input says which honest frame is changed where, and whether its checksum is repaired.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "transport/control_campaign.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (!millrace::run_control_input(std::span(data, size)).empty()) std::abort();
  return 0;
}
