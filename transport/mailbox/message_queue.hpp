// The messages of one channel that were sent and not yet received.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "millrace/transport/endpoint.hpp"

namespace millrace {

/// Storage is kept, so that a queue that once held k messages takes k again without allocation.
/// Thread-safety: externally synchronised. Cost: O(messages held), of the oldest O(1).
class MessageQueue {
 public:
  static constexpr int kUnbounded = 0;

  void set_depth(int depth) { depth_ = depth; }
  [[nodiscard]] int depth() const { return depth_; }
  [[nodiscard]] bool is_full() const {
    return depth_ != kUnbounded && arrivals_.size() >= static_cast<std::size_t>(depth_);
  }

  [[nodiscard]] bool contains(const MessageTag& tag) const {
    return std::ranges::any_of(arrivals_, [&](auto place) { return messages_[place].tag == tag; });
  }

  void put(const MessageTag& tag, TensorList&& payload) {
    if (free_.empty()) {
      free_.push_back(static_cast<std::uint32_t>(messages_.size()));
      messages_.emplace_back();
    }
    const std::uint32_t place = free_.back();
    free_.pop_back();
    messages_[place] = {tag, std::move(payload)};
    arrivals_.push_back(place);
  }

  /// Takes the oldest message with this tag.
  std::optional<TensorList> take(const MessageTag& tag) {
    for (auto arrival = arrivals_.begin(); arrival != arrivals_.end(); ++arrival) {
      if (messages_[*arrival].tag != tag) continue;
      const std::uint32_t place = *arrival;
      arrivals_.erase(arrival);
      free_.push_back(place);
      return std::move(messages_[place].payload);
    }
    return std::nullopt;
  }

 private:
  struct Message {
    MessageTag tag;
    TensorList payload;
  };

  int depth_ = kUnbounded;
  std::vector<Message> messages_;
  std::vector<std::uint32_t> arrivals_;  // indices of messages_, oldest first
  std::vector<std::uint32_t> free_;
};

/// Of one sender, per Direction.
using TakenCounts = std::array<std::uint64_t, 3>;

}  // namespace millrace
