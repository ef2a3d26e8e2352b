#include "run/slot_map.hpp"

namespace millrace::run {

SlotMap::SlotMap(const StageGraph& graph, const std::vector<bool>& touched, std::uint32_t units)
    : row_(touched.size(), 0), units_(units) {
  for (int stage = 0; stage < graph.stages(); ++stage)
    graph.for_each_leaving(Stage{stage}, [&](const StageLink& link) {
      if (!touched[link.index]) return;
      row_[link.index] = static_cast<std::uint32_t>(links_.size());
      links_.push_back(link);
    });
}

std::string SlotMap::name(std::size_t slot, int slices) const {
  const std::size_t activations = links_.size() * units_;
  const bool gradient = slot >= activations;
  const std::size_t at = gradient ? slot - activations : slot;
  const StageLink& link = links_[at / units_];
  const auto unit = static_cast<int>(at % units_);
  std::string text = gradient ? "the gradient for stage " : "the activation for stage ";
  text += std::to_string(gradient ? link.from.value : link.to.value) + ", micro-batch " +
          std::to_string(unit / slices);
  if (slices > 1) text += ", slice " + std::to_string(unit % slices);
  return text;
}

}  // namespace millrace::run
