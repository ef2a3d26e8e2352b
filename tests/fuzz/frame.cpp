// Frames from a hostile peer: header parser and receiver's state machine against a naive model. The
// input says how each next legal frame is changed and whether its checksum is repaired.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "transport/frame_campaign.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (!millrace::run_frame_input(std::span(data, size)).empty()) std::abort();
  return 0;
}
