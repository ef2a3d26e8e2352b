// Bytes become a program; verify, simulate and the naive oracles must agree about it.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "plan/verify_campaign.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  int silent = 0;
  if (!millrace::testing_plan::disagreement(std::span(data, size), silent).empty()) std::abort();
  return 0;
}
