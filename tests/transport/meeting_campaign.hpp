// A meeting whose visitors, or whose host, are hostile: notes as bytes say, honest ones and changed
// ones. It ends with addresses for all ranks or with a message. Shared by the unit suite (seeded)
// and the fuzz target (bytes from the fuzzer).
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace millrace {

/// What became of one input.
struct MeetingResult {
  int met = 0;        ///< meetings that ended with addresses
  int differed = 0;   ///< with a difference
  int ended = 0;      ///< with any other message, or because no rank came any more
  std::string wrong;  ///< describes what must never be; empty when all is well
};

/// The first byte says whether rank 0 or rank 1 of three is here; then come notes: who, which kind,
/// what is changed, how long a text, and the text.
MeetingResult run_meeting_input(std::span<const std::uint8_t> input);

/// `inputs` inputs that follow from the seed, their results added up; stops at what is wrong.
MeetingResult run_meeting_campaign(std::uint64_t seed, int inputs);

}  // namespace millrace
