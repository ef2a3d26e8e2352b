// A rendezvous that receives the input: hellos, welcomes and refusals, honest and changed, as
// rank 0 and as a rank that comes to it.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "transport/meeting_campaign.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (!millrace::run_meeting_input(std::span(data, size)).wrong.empty()) std::abort();
  return 0;
}
