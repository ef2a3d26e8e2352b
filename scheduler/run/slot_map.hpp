// Which slot holds what a link carries for a unit, on its way forward and back.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/scheduler/plan/stage_graph.hpp"

namespace millrace::run {

/// The value slots in order: [link][unit], activations first, then gradients.
/// Thread-safety: immutable, share freely.
class SlotMap {
 public:
  /// `touched[link]`: whether one of its stages works in this process.
  SlotMap(const StageGraph& graph, const std::vector<bool>& touched, std::uint32_t units);

  [[nodiscard]] std::uint32_t activation(const StageLink& link, std::uint32_t unit) const {
    return row_[link.index] * units_ + unit;
  }
  [[nodiscard]] std::uint32_t gradient(const StageLink& link, std::uint32_t unit) const {
    return (static_cast<std::uint32_t>(links_.size()) + row_[link.index]) * units_ + unit;
  }
  [[nodiscard]] std::size_t size() const { return 2 * links_.size() * units_; }

  /// "the activation for stage 2, micro-batch 5".
  [[nodiscard]] std::string name(std::size_t slot, int slices) const;

 private:
  std::vector<std::uint32_t> row_;  // by link; meant where touched
  std::vector<StageLink> links_;    // by row
  std::uint32_t units_ = 0;
};

}  // namespace millrace::run
