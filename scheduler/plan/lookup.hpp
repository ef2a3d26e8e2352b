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

/// Node by (product, stage, micro-batch, slice). A micro-batch belongs to one replica, so the
/// replica is no part of the key. Requires actions inside the shape.
class Lookup {
 public:
  explicit Lookup(const Shape& shape)
      : micro_batches_(static_cast<std::size_t>(shape.micro_batches)),
        slices_(static_cast<std::size_t>(shape.slices)),
        size_(static_cast<std::size_t>(shape.forwards())) {}

  [[nodiscard]] std::size_t index(Stage stage, const MicroBatch& micro_batch, Slice slice) const {
    return (stage.index() * micro_batches_ + micro_batch.index()) * slices_ + slice.index();
  }

  /// Records a node; the first one wins. Returns the node that holds the place afterwards.
  Node insert(const Action& action, Node node) {
    auto& table = tables_[static_cast<std::size_t>(product(action.op))];
    if (table.empty()) table.assign(size_, kNoNode);
    Node& place = table[index(action.stage, action.micro_batch, action.slice)];
    if (place == kNoNode) place = node;
    return place;
  }

  [[nodiscard]] Node find(Product product, Stage stage, MicroBatch micro_batch, Slice slice) const {
    const auto& table = tables_[static_cast<std::size_t>(product)];
    return table.empty() ? kNoNode : table[index(stage, micro_batch, slice)];
  }

  /// Whether any action makes this product.
  [[nodiscard]] bool has(Product product) const {
    return !tables_[static_cast<std::size_t>(product)].empty();
  }

 private:
  std::size_t micro_batches_;
  std::size_t slices_;
  std::size_t size_;
  std::array<std::vector<Node>, kProducts> tables_;
};

}  // namespace millrace::plan
