// Counter-based random numbers (Philox-4x32-10, Salmon et al., SC 2011). A draw is a pure function
// of its key, so results do not depend on stages, micro-batches, recompute or thread interleaving,
// and there is no generator state to save.
#pragma once

#include <array>
#include <cstdint>

namespace millrace {

/// Why a number is drawn; different purposes never share a stream.
enum class Purpose : std::uint32_t {
  Initialize = 1,
  Dropout = 2,
  Shuffle = 3,
  Split = 4,
  Jitter = 5,
  Search = 6,
  Test = 7,
  Window = 8,
  Sampling = 9
};

/// Names one stream of draws. `index` passed to the functions below counts inside the stream.
struct RandomKey {
  std::uint64_t seed = 0;
  Purpose purpose = Purpose::Test;
  std::uint64_t step = 0;    ///< optimizer step, or epoch
  std::uint32_t sample = 0;  ///< sample inside the mini-batch
  std::uint32_t layer = 0;   ///< global layer number
};

namespace detail {

/// Ten Philox rounds; returns four independent 32-bit words for one counter and key.
constexpr std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                              std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t first = std::uint64_t{0xD2511F53U} * counter[0];
    const std::uint64_t second = std::uint64_t{0xCD9E8D57U} * counter[2];
    counter = {static_cast<std::uint32_t>(second >> 32U) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(second),
               static_cast<std::uint32_t>(first >> 32U) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(first)};
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
  }
  return counter;
}

}  // namespace detail

/// Four independent 32-bit words: block `block` of the stream named by `key`.
/// The key's five fields and the block number are mixed through two Philox calls, so that streams
/// that differ in any field are independent. Cost: 20 rounds.
[[nodiscard]] constexpr std::array<std::uint32_t, 4> random_block(const RandomKey& key,
                                                                  std::uint32_t block) {
  const auto stream = detail::philox(
      {static_cast<std::uint32_t>(key.step),
       static_cast<std::uint32_t>(key.step >> 32U),
       static_cast<std::uint32_t>(key.purpose),
       key.layer},
      {static_cast<std::uint32_t>(key.seed), static_cast<std::uint32_t>(key.seed >> 32U)});
  return detail::philox({block, key.sample, stream[0], stream[1]}, {stream[2], stream[3]});
}

/// One uniform 32-bit word: word `index` of the stream.
[[nodiscard]] constexpr std::uint32_t random_word(const RandomKey& key, std::uint32_t index) {
  return random_block(key, index / 4)[index % 4];
}

/// Uniform in [0, 1) with 24 bits, so float and double agree.
[[nodiscard]] constexpr double random_uniform(const RandomKey& key, std::uint32_t index) {
  return static_cast<double>(random_word(key, index) >> 8U) * (1.0 / 16777216.0);
}

/// Uniform integer in [0, bound), by multiply-shift (bias below bound / 2^32). Requires bound > 0.
[[nodiscard]] constexpr std::uint32_t random_below(const RandomKey& key,
                                                   std::uint32_t index,
                                                   std::uint32_t bound) {
  return static_cast<std::uint32_t>((std::uint64_t{random_word(key, index)} * bound) >> 32U);
}

}  // namespace millrace
