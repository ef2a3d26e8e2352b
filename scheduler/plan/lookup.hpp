// Lookup: which node makes a product. Dense tables, one per product that occurs, because a hash map
// costs more than the whole simulation of a large program.
#pragma once

#include <array>
#include <limits>
#include <vector>

#include "millrace/scheduler/plan/dependencies.hpp"
#include "millrace/scheduler/plan/graph.hpp"

namespace millrace::plan {

inline constexpr Node kNoNode = std::numeric_limits<Node>::max();

/// Node by (product, row, micro-batch, slice): the row is the stage, for messages the link. A
/// micro-batch belongs to one replica, so the replica is no part of the key. Requires actions
/// inside the shape.
class Lookup {
 public:
  Lookup(const Shape& shape, const StageGraph& graph)
      : graph_(&graph),
        micro_batches_(static_cast<std::size_t>(shape.micro_batches)),
        slices_(static_cast<std::size_t>(shape.slices)),
        units_(micro_batches_ * slices_),
        stages_(static_cast<std::size_t>(shape.stages())) {}

  [[nodiscard]] std::size_t index(Stage stage, const MicroBatch& micro_batch, Slice slice) const {
    return (stage.index() * micro_batches_ + micro_batch.index()) * slices_ + slice.index();
  }

  /// Records a node; the first one wins. Returns the node that holds the place afterwards; a
  /// message that belongs to no link has no place.
  Node insert(const Action& action, Node node) {
    auto& table = tables_[static_cast<std::size_t>(product(action.op))];
    std::size_t row = action.stage.index();
    if (!is_compute(action.op)) {
      const auto link = graph_->link(action);
      if (!link) return node;
      row = link->index;
    }
    if (table.empty())
      table.assign((is_compute(action.op) ? stages_ : graph_->links()) * units_, kNoNode);
    Node& place = table[row * units_ + unit(action.micro_batch, action.slice)];
    if (place == kNoNode) place = node;
    return place;
  }

  /// Of what a stage computes.
  [[nodiscard]] Node find(Product product, Stage stage, MicroBatch micro_batch, Slice slice) const {
    return find_row(product, stage.index(), micro_batch, slice);
  }

  /// Of a send or receive along a link.
  [[nodiscard]] Node find(Product product,
                          std::uint32_t link,
                          MicroBatch micro_batch,
                          Slice slice) const {
    return find_row(product, link, micro_batch, slice);
  }

 private:
  [[nodiscard]] std::size_t unit(const MicroBatch& micro_batch, Slice slice) const {
    return micro_batch.index() * slices_ + slice.index();
  }

  [[nodiscard]] Node find_row(Product product,
                              std::size_t row,
                              MicroBatch micro_batch,
                              Slice slice) const {
    const auto& table = tables_[static_cast<std::size_t>(product)];
    return table.empty() ? kNoNode : table[row * units_ + unit(micro_batch, slice)];
  }

  const StageGraph* graph_;
  std::size_t micro_batches_;
  std::size_t slices_;
  std::size_t units_;
  std::size_t stages_;
  std::array<std::vector<Node>, kProducts> tables_;
};

}  // namespace millrace::plan
