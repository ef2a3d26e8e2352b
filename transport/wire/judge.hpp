// What a receiver checks of every data frame, over any backend (fuzzed, and compared with a model):
// fields, order, and whether messages stay whole.
#pragma once

#include <cstdint>
#include <span>

#include "transport/wire/frame.hpp"

namespace millrace {

/// Checks the data frames of one source, which have sequence numbers without holes.
/// Thread-safety: externally synchronised.
class FrameJudge {
 public:
  explicit FrameJudge(const FrameExpectation& expected) : expectation_(expected) {}

  /// None accepts the frame: `expected()` has moved on. `out` is filled then, and for Duplicate,
  /// Gap, State and Payload. Cost: decode, and payload_hash of a hashed frame.
  [[nodiscard]] Refusal take(std::span<const std::byte> header,
                             std::span<const std::byte> payload,
                             DataHeader& out);

  /// The next sequence number; everything below has arrived.
  [[nodiscard]] std::uint64_t expected() const { return next_; }

  /// True between the first and the last tensor of a message.
  [[nodiscard]] bool inside_message() const { return next_tensor_ != 0; }

  [[nodiscard]] const FrameExpectation& expectation() const { return expectation_; }

 private:
  [[nodiscard]] bool legal(const DataHeader& header) const;

  FrameExpectation expectation_;
  std::uint64_t next_ = 0;
  int next_tensor_ = 0;
  int tensors_ = 0;
  MessageTag tag_;
};

}  // namespace millrace
