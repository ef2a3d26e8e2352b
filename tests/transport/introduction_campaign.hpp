// A stranger at the socket where a rank is given memory: what it says, and what descriptors it
// gives, are as bytes say. For any input, the rank refuses it or ends the epoch with a message,
// keeps no descriptor and reads no memory that may shrink. Shared by the unit suite (seeded) and
// the fuzz target (bytes from the fuzzer).
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace millrace {

/// What became of one input.
struct IntroductionResult {
  int let_in = 0;     ///< who could be taken for a rank
  int arrived = 0;    ///< messages of theirs
  int ended = 0;      ///< epochs, by what was refused
  std::string wrong;  ///< describes what must never be; empty when all is well
};

/// Every 4 bytes: what is done (come, introduce oneself, give memory, write to it, make it shorter,
/// say something without sense, hang up, let the rank take a turn), and with what.
IntroductionResult run_introduction_input(std::span<const std::uint8_t> input);

/// `inputs` inputs that follow from the seed, their results added up; stops at what is wrong.
IntroductionResult run_introduction_campaign(std::uint64_t seed, int inputs);

}  // namespace millrace
