// How long things of one kind took: enough to say what is usual, in a place of fixed size.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

namespace millrace {

/// A histogram with eight bins per power of two, from a microsecond to an hour. Thread-safety:
/// externally synchronised. Cost of `add`: some nanoseconds, independent of how many there were.
class Durations {
 public:
  void add(std::chrono::nanoseconds took) noexcept;

  [[nodiscard]] std::chrono::nanoseconds longest() const { return longest_; }

  /// What 99 of 100 did not exceed, rounded up by at most an eighth; zero before there were 100.
  [[nodiscard]] std::chrono::nanoseconds p99() const noexcept;

 private:
  static constexpr unsigned kPerOctave = 8;
  static constexpr unsigned kOctaves = 33;
  static constexpr std::size_t kBins = kPerOctave * kOctaves;

  std::array<std::uint32_t, kBins> bins_{};
  std::uint32_t count_ = 0;
  std::uint32_t above_ = 0;  // in bins above at_
  std::size_t at_ = 0;       // the bin of the 99th percentile
  std::chrono::nanoseconds longest_{};
};

}  // namespace millrace
