// An unknown peer at the socket where a rank is given memory: words, descriptors and memory as the
// input says are rejected, leak no descriptor and keep no rank from joining.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "transport/introduction_campaign.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kMost = 400;  // a hundred deeds
  const auto input = std::span(data, size).first(std::min(size, kMost));
  if (!millrace::run_introduction_input(input).wrong.empty()) std::abort();
  return 0;
}
