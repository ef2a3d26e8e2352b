#include "transport/liveness/durations.hpp"

#include <algorithm>
#include <bit>
#include <limits>

namespace millrace {

namespace {

constexpr unsigned kFirstOctave = 10;  // 2^10 ns
constexpr unsigned kBinBits = 3;       // of a number behind its first bit
constexpr std::uint32_t kEnough = 100;

}  // namespace

void Durations::add(std::chrono::nanoseconds took) noexcept {
  longest_ = std::max(longest_, took);
  if (count_ == std::numeric_limits<std::uint32_t>::max()) return;
  const auto number = std::max(static_cast<std::uint64_t>(std::max<std::int64_t>(took.count(), 0)),
                               std::uint64_t{1} << kFirstOctave);
  const auto octave = static_cast<unsigned>(std::bit_width(number)) - 1;
  const auto inside = (number >> (octave - kBinBits)) % kPerOctave;
  const std::size_t bin =
      std::min<std::size_t>(std::size_t{octave - kFirstOctave} * kPerOctave + inside, kBins - 1);
  ++bins_[bin];
  ++count_;
  if (bin > at_) ++above_;
  // The 99th percentile moves by few bins at a time.
  while (above_ > count_ / kEnough) above_ -= bins_[++at_];
  while (at_ > 0 && above_ + bins_[at_] <= count_ / kEnough) above_ += bins_[at_--];
}

std::chrono::nanoseconds Durations::p99() const noexcept {
  if (count_ < kEnough) return {};
  if (at_ + 1 == kBins) return longest_;
  const std::size_t octave = (at_ + 1) / kPerOctave + kFirstOctave;
  const std::uint64_t edge = (kPerOctave + (at_ + 1) % kPerOctave) << (octave - kBinBits);
  return std::min(longest_, std::chrono::nanoseconds(edge));
}

}  // namespace millrace
