// Lookup: which node makes a product. Dense tables, one per product that occurs, because a hash map
// costs more than the whole simulation of a large program.
#pragma once

#include <array>
#include <limits>
#include <vector>

#include "millrace/scheduler/plan/graph.hpp"

namespace millrace::plan {

inline constexpr Node kNoNode = std::numeric_limits<Node>::max();

/// Node by (product, row, micro-batch, slice): the row is the stage, for messages the link. A
/// micro-batch belongs to one replica, so the replica is not part of the key. Requires actions
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
    if (!is_compute(action.op)) return insert_message(action, node);
    return insert_row(action, action.stage.index(), stages_, node);
  }

  /// Whether a send or receive was recorded, or one that has no place.
  [[nodiscard]] bool has_messages() const { return has_messages_; }

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
  Node insert_row(const Action& action, std::size_t row, std::size_t rows, Node node) {
    auto& table = tables_[static_cast<std::size_t>(product(action.op))];
    if (table.empty()) table.assign(rows * units_, kNoNode);
    Node& place = table[row * units_ + unit(action.micro_batch, action.slice)];
    if (place == kNoNode) place = node;
    return place;
  }

  // Not inlined: most programs have none.
  __attribute__((noinline)) Node insert_message(const Action& action, Node node) {
    has_messages_ = true;
    const auto link = graph_->link(action);
    return link ? insert_row(action, link->index, graph_->links(), node) : node;
  }

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
  bool has_messages_ = false;
  std::array<std::vector<Node>, kProducts> tables_;
};

}  // namespace millrace::plan
