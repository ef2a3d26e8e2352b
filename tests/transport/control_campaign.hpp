// Hostile control frames: honest ones of every kind, changed on the way. Shared by the unit suite
// (seeded) and the fuzz target (bytes from the fuzzer).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "transport/wire/control.hpp"

namespace millrace {

struct ControlCampaign {
  std::uint64_t accepted = 0;
  std::array<std::uint64_t, kRefusals> refused{};
  std::string fault;  ///< describes the first, empty when there is none
};

/// One honest frame of every kind, drawn from `seed`: numbers small, large and at their bounds.
std::vector<Control> honest_controls(std::uint64_t seed);

/// What every receiver expects of them.
FrameExpectation expectation_of_controls();
Envelope envelope_of_controls();

/// A frame that is taken can be encoded again, byte for byte: then nothing in it was
/// unchecked. Empty, or what does not hold.
std::string fault_of(std::span<const std::byte> header,
                     std::span<const std::byte> text,
                     ControlCampaign& campaign);

/// `frames` frames: honest ones and mutants of them, most with repaired checksums and hashes.
ControlCampaign run_control_campaign(std::uint64_t seed, std::uint64_t frames);

/// One fuzzer input: which kind, then header bytes and values that are put there.
std::string run_control_input(std::span<const std::uint8_t> input);

}  // namespace millrace
