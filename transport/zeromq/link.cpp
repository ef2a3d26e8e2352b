// Go-back-N: a receiver takes frames in sequence only and asks once for what is missing; a sender
// repeats from there. The sender's probe travels after its data, so a probe that arrives before
// its data proves that the data is lost: nothing is ever sent twice because a link is slow. A probe
// says which question its sender had obeyed, so those that left earlier prove nothing about what
// was repeated.
#include "transport/zeromq/link.hpp"

namespace millrace::zeromq {

ReceiveLink::Verdict ReceiveLink::answered(Verdict verdict, bool repeat) {
  ++counts_[static_cast<std::size_t>(verdict.refusal)];
  verdict.answer = answer_to(verdict.refusal);
  if (verdict.answer != Answer::AskAgain) return verdict;
  if (asked_ != 0 && !repeat) {
    verdict.answer = Answer::Drop;
    return verdict;
  }
  ++asks_;
  if (++asked_ > attempts_) verdict.answer = Answer::Abort;
  return verdict;
}

ReceiveLink::Verdict ReceiveLink::answer_gap(Verdict verdict) {
  verdict.refusal = Refusal::Gap;
  if (!verdict.probe || asked_ == 0 || verdict.probe->obeyed >= asks_)
    return answered(verdict, verdict.probe.has_value());
  // The question is on its way, or lost: the same again.
  ++counts_[static_cast<std::size_t>(verdict.refusal)];
  verdict.answer = Answer::AskAgain;
  return verdict;
}

ReceiveLink::Verdict ReceiveLink::refuse(Refusal refusal) {
  return answered({.refusal = refusal, .header = {}, .probe = {}}, false);
}

ReceiveLink::Verdict ReceiveLink::take_probe(std::span<const std::byte> header,
                                             std::span<const std::byte> payload) {
  Verdict verdict;
  Control control;
  verdict.refusal = decode(header, payload, judge_.expectation(), verdict.header, control);
  if (verdict.refusal != Refusal::None) return answered(verdict, false);
  verdict.probe = std::get<Probe>(control);
  if (verdict.probe->sequence > expected()) return answer_gap(verdict);
  verdict.refusal = Refusal::Duplicate;
  return answered(verdict, false);
}

ReceiveLink::Verdict ReceiveLink::take(std::span<const std::byte> header,
                                       std::span<const std::byte> payload) {
  if (claimed_kind(header) == FrameKind::Probe) return take_probe(header, payload);
  Verdict verdict;
  verdict.refusal = judge_.take(header, payload, verdict.header);
  if (verdict.refusal == Refusal::Gap) return answer_gap(verdict);
  if (verdict.refusal != Refusal::None)
    return answered(verdict, verdict.refusal == Refusal::Payload);
  asked_ = 0;
  return verdict;
}

RetainedFrame& SendLink::add(DataHeader header, Tensor tensor) {
  header.sequence = next_;
  const FrameBytes bytes = encode(header);
  if (spare_.empty()) spare_.emplace_back();
  kept_.splice(kept_.end(), spare_, spare_.begin());
  RetainedFrame& frame = kept_.back();
  frame.header = bytes;
  frame.tensor = std::move(tensor);
  frame.lead = header.lead;
  frame.sequence = next_++;
  return frame;
}

void SendLink::acknowledge(std::uint64_t sequence) {
  if (sequence > next_) return;
  while (!kept_.empty() && kept_.front().sequence < sequence)
    freed_later_.splice(freed_later_.end(), kept_, kept_.begin());
}

void SendLink::sweep() {
  for (auto frame = freed_later_.begin(); frame != freed_later_.end();) {
    const auto each = frame++;
    if (each->flights.load(std::memory_order_acquire) != 0) continue;
    each->tensor = {};
    spare_.splice(spare_.end(), freed_later_, each);
  }
}

}  // namespace millrace::zeromq
