// Hash of a program: shape and actions as little-endian 32-bit numbers, so that it is the same on
// every machine.
#include <array>
#include <cstddef>
#include <cstdint>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "plan/text/plan_hash.hpp"

namespace millrace {

namespace {

// Numbers in, digest out; full buffers go to the hash.
class Digest {
 public:
  Digest() { XXH3_128bits_reset(&state_); }

  void add(std::int64_t value) {
    const auto number = static_cast<std::uint32_t>(value);
    for (unsigned shift = 0; shift < 32; shift += 8)
      buffer_[used_++] = static_cast<unsigned char>(number >> shift);
    if (used_ == buffer_.size()) flush();
  }

  std::string hex() {
    flush();
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state_));
    std::string text;
    for (const unsigned char byte : canonical.digest) {
      text += "0123456789abcdef"[byte >> 4U];
      text += "0123456789abcdef"[byte & 15U];
    }
    return text;
  }

 private:
  void flush() {
    XXH3_128bits_update(&state_, buffer_.data(), used_);
    used_ = 0;
  }

  XXH3_state_t state_;
  std::array<unsigned char, 4096> buffer_{};
  std::size_t used_ = 0;
};

void add_text(const std::string& text, Digest& digest) {
  digest.add(static_cast<std::int64_t>(text.size()));
  for (const char byte : text) digest.add(static_cast<unsigned char>(byte));
}

/// Nothing without ties; else first a number that no edge has.
void add_ties(const std::vector<StageTie>& ties, Digest& digest) {
  if (ties.empty()) return;
  for (const std::int64_t number : {std::int64_t{-1}, static_cast<std::int64_t>(ties.size())})
    digest.add(number);
  for (const StageTie& tie : ties) {
    digest.add(static_cast<std::int64_t>(tie.weights.size()));
    for (const StageWeight& weight : tie.weights) {
      digest.add(weight.stage.value);
      add_text(weight.name, digest);
    }
  }
}

}  // namespace

std::string plan_hash(const Program& program) {
  const Shape& shape = program.shape;
  Digest digest;
  for (const int number : {1,  // version of this serialisation
                           shape.ranks,
                           shape.micro_batches,
                           shape.slices,
                           shape.forward_only ? 1 : 0,
                           shape.replicas(),
                           shape.stages()})
    digest.add(number);
  for (int replica = 0; replica < shape.replicas(); ++replica)
    for (int stage = 0; stage < shape.stages(); ++stage)
      digest.add(shape.rank(Replica{replica}, Stage{stage}).value);
  digest.add(static_cast<std::int64_t>(shape.replica_of.size()));
  for (const Replica replica : shape.replica_of) digest.add(replica.value);
  for (const StageEdge& edge : shape.edges)  // none in a chain
    for (const int number : {edge.from.value, edge.output, edge.to.value, edge.input})
      digest.add(number);
  add_ties(shape.ties, digest);
  for (const Stage sink : shape.sinks) digest.add(sink.value);  // none where it is the last stage
  for (const auto& list : program.ranks) {
    digest.add(static_cast<std::int64_t>(list.size()));
    for (const Action& action : list) {
      digest.add(static_cast<std::int64_t>(action.op) | (action.with_next ? 1 << 8 : 0) |
                 std::int64_t{action.replica_number} << 16 | std::int64_t{action.edge} << 24);
      digest.add(action.stage.value);
      digest.add(action.micro_batch.value);
      digest.add(action.slice.value);
    }
  }
  return digest.hex();
}

std::string plan_checksum(const std::string& hash,
                          const std::string& name,
                          const std::vector<int>& boundaries) {
  Digest digest;
  for (const std::string& text : {hash, name}) add_text(text, digest);
  for (const int boundary : boundaries) digest.add(boundary);
  return digest.hex();
}

}  // namespace millrace
