// What a rank does now, written by its own thread before everything it does and readable at any
// moment by others: by the thread that owns the sockets and, on the same machine, by other ranks'
// processes, so that a rank that was stopped or killed is still named with its very action.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "transport/liveness/activity.hpp"

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

/// The place where a rank writes. Two copies in turn: a reader takes the published one, which the
/// writer leaves alone until it has published the other.
/// Thread-safety: `begin` on one thread; `now` on any.
class ProgressSlot {
 public:
  /// With a path the slot is a file of this user alone that lasts as long as this object, or until
  /// the rank starts again if the process is killed. Throws TransportError while a living
  /// process holds the file, naming both processes, and when it cannot be made.
  explicit ProgressSlot(std::string path);
  ProgressSlot(const ProgressSlot&) = delete;
  ProgressSlot& operator=(const ProgressSlot&) = delete;
  ~ProgressSlot();

  /// The rank begins something; counts, takes the time, and remembers how long the last one took.
  void begin(Activity activity) noexcept;
  [[nodiscard]] Activity now() const noexcept;

  /// Another rank's slot on this machine; empty when there is none or it cannot be read.
  static std::optional<Activity> of(const std::string& path) noexcept;

 private:
  struct Page {
    std::atomic<std::uint64_t> published{0};  // release: publishes the words of copy published % 2
    std::array<std::array<std::atomic<std::uint64_t>, kActivityWords>, 2> copies{};
  };

  /// An op of a stage, in training or in evaluation.
  struct Kind {
    std::array<char, 16> what;
    Stage stage;
    bool evaluates = false;
    Durations took = {};
  };

  Kind& kind_of(const Activity& activity);

  std::string path_;
  int file_ = -1;         // locked, when there is a path
  Page* page_ = nullptr;  // in shared memory when there is a path
  Activity last_;         // of the writer
  std::vector<Kind> kinds_;
};

}  // namespace millrace
