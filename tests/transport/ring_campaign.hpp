// A hostile writer of a ring against its reader: entries, counters and places are changed as bytes
// say, and all that is taken must lie where it may and be what its header says. Shared by the unit
// suite (seeded) and the fuzz target (bytes from the fuzzer).
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace millrace {

/// What became of one input's entries.
struct RingResult {
  int taken = 0;
  int refused = 0;     ///< frames that are none
  bool ended = false;  ///< by a counter or a place that cannot be
  std::string wrong;   ///< describes what must never be; empty when all is well
};

/// Every 4 bytes: what is done (write an entry, change a word of the next one with or without its
/// checksum repaired, count, read), where, and with which two bytes.
RingResult run_ring_input(std::span<const std::uint8_t> input);

/// `inputs` inputs that follow from the seed, their results added up; stops at what is wrong.
RingResult run_ring_campaign(std::uint64_t seed, int inputs);

}  // namespace millrace
