// Hostile frames against the receiver's state machine, compared with a second, naive reading of the
// same bytes. Shared by the unit suite (seeded) and the fuzz target (bytes from the fuzzer).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "transport/wire/frame.hpp"

namespace millrace {

/// Reads the same bytes in another way: fields by memcpy, sizes in 128-bit numbers, one condition
/// after the other without regard to cost. Knows only "taken" or "not taken".
class NaiveReceiver {
 public:
  explicit NaiveReceiver(const FrameExpectation& expected) : expected_(expected) {}

  bool takes(std::span<const std::byte> header, std::span<const std::byte> payload);
  [[nodiscard]] std::uint64_t next() const { return next_; }

 private:
  FrameExpectation expected_;
  std::uint64_t next_ = 0;
  int tensor_ = 0;
  std::array<std::byte, 32> open_tag_{};
};

struct CampaignResult {
  std::uint64_t accepted = 0;
  std::uint64_t disagreements = 0;
  std::array<std::uint64_t, kRefusals> refused{};
  std::string first;  ///< describes the first disagreement
};

/// `frames` frames: legal ones and mutants of them, half of the mutants with a repaired checksum.
CampaignResult run_frame_campaign(std::uint64_t seed, std::uint64_t frames);

/// One fuzzer input: a series of mutations (where, what, repaired or not) of the next legal frame.
/// Returns a description of a disagreement, empty when there is none.
std::string run_frame_input(std::span<const std::uint8_t> input);

}  // namespace millrace
