#include "transport/wire/judge.hpp"

namespace millrace {

bool FrameJudge::legal(const DataHeader& header) const {
  if (header.tensor_index != next_tensor_) return false;
  return next_tensor_ == 0 || (header.tag == tag_ && header.tensor_count == tensors_);
}

Refusal FrameJudge::take(std::span<const std::byte> header,
                         std::span<const std::byte> payload,
                         DataHeader& out) {
  const Refusal wrong = decode(header, payload.size(), expectation_, out);
  if (wrong != Refusal::None) return wrong;
  if (out.sequence != next_) return out.sequence > next_ ? Refusal::Gap : Refusal::Duplicate;
  if (!legal(out)) return Refusal::State;
  if (out.hashed && payload_hash(tensor_bytes(out, payload)) != out.payload_hash)
    return Refusal::Payload;
  ++next_;
  tag_ = out.tag;
  tensors_ = out.tensor_count;
  next_tensor_ = out.tensor_index + 1 < out.tensor_count ? out.tensor_index + 1 : 0;
  return Refusal::None;
}

}  // namespace millrace
