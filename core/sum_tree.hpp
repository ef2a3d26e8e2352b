// Sums whose bits do not depend on who adds which part: one balanced binary tree over the leaves of
// a sum, the same for every way to share them out.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/core/error.hpp"

namespace millrace {

/// Consecutive leaves of a sum: [first, last).
struct LeafRange {
  int first = 0;
  int last = 0;

  [[nodiscard]] int count() const { return last - first; }
  friend bool operator==(const LeafRange&, const LeafRange&) = default;
};

/// The order in which n numbers are added:
///
///     sum(n leaves) = sum(the first ceil(n / 2)) + sum(the rest)
///
/// A node's sum does not depend on the process that computes it.
/// Thread-safety: a value. Cost of a call: O(log n).
class SumTree {
 public:
  /// Throws InvalidArgument for fewer leaves than 1.
  explicit SumTree(int leaves) : leaves_(leaves) {
    require(leaves >= 1, "a sum has at least 1 leaf, got " + std::to_string(leaves));
  }

  [[nodiscard]] LeafRange root() const { return {0, leaves_}; }

  /// The two nodes that make up one of at least 2 leaves.
  [[nodiscard]] static std::pair<LeafRange, LeafRange> halves(LeafRange node) {
    const int middle = node.first + (node.count() + 1) / 2;
    return {{node.first, middle}, {middle, node.last}};
  }

  [[nodiscard]] bool has(LeafRange range) const {
    const auto [node, parent] = last_to_hold(range);
    return node == range && range.count() >= 1;
  }

  /// The node that `node`, which is not the root, is a half of.
  [[nodiscard]] LeafRange parent(LeafRange node) const { return last_to_hold(node).second; }

  /// The other half of its parent.
  [[nodiscard]] LeafRange sibling(LeafRange node) const {
    const auto [first, rest] = halves(parent(node));
    return first == node ? rest : first;
  }

 private:
  /// The smallest node with all of `range`, and its parent (itself, of the root).
  [[nodiscard]] std::pair<LeafRange, LeafRange> last_to_hold(LeafRange range) const {
    LeafRange node = root();
    LeafRange parent = node;
    while (node.count() > 1 && node != range) {
      const auto [first, rest] = halves(node);
      const bool in_first = range.last <= first.last;
      if (!in_first && range.first < rest.first) break;
      parent = std::exchange(node, in_first ? first : rest);
    }
    return {node, parent};
  }

  int leaves_;
};

/// The sums of a node's leaves on their way together. They may come in any order; what has no
/// partner yet waits, at most one sum for each level while leaves ascend. A leaf may have nothing
/// to add: it is absent, which is not 0 (x + 0 may have other bits than x).
/// Thread-safety: externally synchronised. Cost of a leaf: O(waiting sums).
template <class Sum>
class PartialSums {
 public:
  /// The sum of `node`'s leaves. Throws InvalidArgument if it is not a node of the tree.
  PartialSums(const SumTree& tree, LeafRange node) : tree_(tree), node_(node) {
    require(tree.has(node), [&] {
      return "leaves " + std::to_string(node.first) + " to " + std::to_string(node.last - 1) +
             " of " + std::to_string(tree.root().last) + " are not a node of their tree of sums";
    });
  }

  /// Takes the sum of a leaf, each leaf once; `add(a, b)` makes a the sum of both.
  template <class Add>
  void give(int leaf, std::optional<Sum> sum, const Add& add) {
    LeafRange node{leaf, leaf + 1};
    while (node != node_) {
      const auto partner = find(tree_.sibling(node));
      if (partner == waiting_.end()) break;
      join(sum, partner->second, add);
      waiting_.erase(partner);
      node = tree_.parent(node);
    }
    waiting_.emplace_back(node, std::move(sum));
  }

  /// Whether every leaf has come.
  [[nodiscard]] bool is_complete() const {
    return waiting_.size() == 1 && waiting_.front().first == node_;
  }

  /// Of a complete one: nothing when all leaves were absent.
  [[nodiscard]] std::optional<Sum> take() {
    std::optional<Sum> sum = std::move(waiting_.front().second);
    waiting_.clear();
    return sum;
  }

  /// Sums that are held.
  [[nodiscard]] int held() const {
    int count = 0;
    for (const auto& [node, sum] : waiting_) count += sum.has_value() ? 1 : 0;
    return count;
  }

  void clear() { waiting_.clear(); }

 private:
  using Waiting = std::vector<std::pair<LeafRange, std::optional<Sum>>>;

  typename Waiting::iterator find(LeafRange node) {
    auto place = waiting_.begin();
    while (place != waiting_.end() && place->first != node) ++place;
    return place;
  }

  template <class Add>
  static void join(std::optional<Sum>& sum, std::optional<Sum>& partner, const Add& add) {
    if (!partner) return;
    if (sum)
      add(*sum, *partner);
    else
      sum = std::move(partner);
  }

  SumTree tree_;
  LeafRange node_;
  Waiting waiting_;
};

}  // namespace millrace
