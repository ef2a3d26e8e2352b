// The two ends of one connection without sockets: how a receiver answers every frame (fuzzed, and
// compared with a model), and the frames that a sender keeps until they are acknowledged.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <optional>
#include <span>

#include "transport/wire/control.hpp"
#include "transport/wire/frame.hpp"

namespace millrace::zeromq {

/// Judges the frames of one source in the order of arrival.
/// Thread-safety: externally synchronised.
class ReceiveLink {
 public:
  struct Verdict {
    Answer answer = Answer::Accept;
    Refusal refusal = Refusal::None;
    /// Meant when accepted, or refused as Duplicate, Gap, State or Payload; of a probe the
    /// envelope.
    DataHeader header;
    std::optional<Probe> probe;  ///< meant in the same cases
  };

  /// `attempts`: how often the same sequence number is asked for before the answer is Abort.
  ReceiveLink(const FrameExpectation& expected, int attempts)
      : judge_(expected), attempts_(attempts) {}

  /// Judges one frame of the data connection (a tensor or a probe). Accept means: hand it over;
  /// `expected()` has moved on. AskAgain means: send a NACK for `expected()`.
  Verdict take(std::span<const std::byte> header, std::span<const std::byte> payload);

  /// Counts and answers an offence that was seen before the header could be read.
  Verdict refuse(Refusal refusal);

  /// Number of the last question, from 1; a NACK carries it, and the sender obeys each once.
  [[nodiscard]] std::int32_t asks() const { return asks_; }

  /// The next sequence number; everything below has arrived.
  [[nodiscard]] std::uint64_t expected() const { return judge_.expected(); }

  [[nodiscard]] std::uint64_t count(Refusal refusal) const {
    return counts_[static_cast<std::size_t>(refusal)];
  }

  /// True between the first and the last tensor of a message.
  [[nodiscard]] bool inside_message() const { return judge_.inside_message(); }

 private:
  Verdict answered(Verdict verdict, bool repeat);
  Verdict answer_gap(Verdict verdict);
  Verdict take_probe(std::span<const std::byte> header, std::span<const std::byte> payload);

  FrameJudge judge_;
  int attempts_;
  int asked_ = 0;          // how often expected() was asked for
  std::int32_t asks_ = 0;  // questions in all
  std::array<std::uint64_t, kRefusals> counts_{};
};

/// A frame that was sent and must stay until the other side has it.
struct RetainedFrame {
  FrameBytes header{};
  Tensor tensor;
  int lead = 0;
  std::uint64_t sequence = 0;
  /// Copies of the frame that the network layer still reads. The release decrement there pairs with
  /// the acquire load in sweep(): when the tensor is freed, no reads are left.
  std::atomic<int> flights{0};
};

/// Numbers frames and keeps them until acknowledged.
/// Thread-safety: externally synchronised, except `flights`.
class SendLink {
 public:
  /// Gives `header` the next sequence number and keeps it with `tensor`. The reference stays valid
  /// until the frame is acknowledged and no copy flies.
  RetainedFrame& add(DataHeader header, Tensor tensor);

  /// Everything below `sequence` has arrived. Numbers from the past or the future are ignored.
  void acknowledge(std::uint64_t sequence);

  /// Frees what is acknowledged and no longer read.
  void sweep();

  [[nodiscard]] std::uint64_t next() const { return next_; }
  [[nodiscard]] std::uint64_t oldest() const { return next_ - kept_.size(); }
  [[nodiscard]] bool settled() const { return kept_.empty(); }
  [[nodiscard]] bool landed() const { return kept_.empty() && freed_later_.empty(); }

  /// Calls body(frame) for the kept frames from `sequence` on, in order.
  template <class Body>
  void each_from(std::uint64_t sequence, const Body& body) {
    for (RetainedFrame& frame : kept_)
      if (frame.sequence >= sequence) body(frame);
  }

 private:
  std::uint64_t next_ = 0;
  std::list<RetainedFrame> kept_;
  std::list<RetainedFrame> freed_later_;
  std::list<RetainedFrame> spare_;  // for the next ones
};

}  // namespace millrace::zeromq
