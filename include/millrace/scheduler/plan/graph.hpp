// Dependencies between actions, and the graph of a program: one node per action, edges by a
// formula.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "millrace/scheduler/plan/program.hpp"
#include "millrace/scheduler/plan/shape.hpp"
#include "millrace/scheduler/plan/stage_graph.hpp"

namespace millrace {

/// What a unit's actions produce. Gradient is the input gradient, made by B or I.
enum class Product : std::uint8_t {
  Forward,
  Gradient,
  Weight,
  Recompute,
  SendForward,
  RecvForward,
  SendBackward,
  RecvBackward,
};

inline constexpr int kProducts = 8;

/// The product of an op that belongs to a unit. Requires has_unit(op).
[[nodiscard]] constexpr Product product(Op op) {
  constexpr std::array<Product, 9> kTable = {Product::Forward,
                                             Product::Gradient,
                                             Product::Gradient,
                                             Product::Weight,
                                             Product::Recompute,
                                             Product::SendForward,
                                             Product::RecvForward,
                                             Product::SendBackward,
                                             Product::RecvBackward};
  return kTable[static_cast<std::size_t>(op)];
}

/// One thing that an action waits for: a product of a stage and a slice of its micro-batch.
struct Need {
  Product product = Product::Forward;
  Stage stage;
  Slice slice;
  /// Index of the link through which it comes from another stage, or kNoLink.
  std::uint32_t link = kNoLink;
};

/// All that the rules ask of a shape.
struct Pipeline {
  StageGraph graph;
  std::int32_t slices;
};

/// Calls `use(Need)` for everything `action` waits for, in its own replica and micro-batch. With
/// t -> s for every link that enters s and s -> u for every one that leaves it:
///   F(s,k) <- F(t,k), F(s,k-1);  B or I(s,k) <- F(s,k), recompute(s,k), gradient(u,k),
///   gradient(s,k+1);  W <- I;  recompute <- F;  a send <- what it sends;  a receive <- its send.
/// A need that no action of the program produces (no recompute, say) binds nothing.
/// REDUCE_GRAD and the optimizer step have no unit and no needs here. Cost: O(links of the stage).
template <class Use>
__attribute__((always_inline)) inline void for_each_need(const Pipeline& pipeline,
                                                         const Action& action,
                                                         Use&& use) {
  const StageGraph& graph = pipeline.graph;
  const Stage s = action.stage;
  const std::int32_t k = action.slice.value;
  const auto add = [&](
      Product product, Stage stage, std::int32_t slice, std::uint32_t link = kNoLink)
      __attribute__((always_inline)) {  // so that each case knows its product
    use(Need{product, stage, Slice{slice}, link});
  };
  switch (action.op) {
    case Op::Forward:
      graph.for_each_entering(
          s, [&](const StageLink& link) __attribute__((always_inline)) {
            add(Product::Forward, link.from, k, link.index);
          });
      if (k > 0) add(Product::Forward, s, k - 1);
      break;
    case Op::Backward:
    case Op::BackwardInput:
      add(Product::Forward, s, k);
      add(Product::Recompute, s, k);
      graph.for_each_leaving(
          s, [&](const StageLink& link) __attribute__((always_inline)) {
            add(Product::Gradient, link.to, k, link.index);
          });
      if (k + 1 < pipeline.slices) add(Product::Gradient, s, k + 1);
      break;
    case Op::BackwardWeight:
      add(Product::Gradient, s, k);
      break;
    case Op::Recompute:
    case Op::SendForward:
      add(Product::Forward, s, k);
      break;
    case Op::RecvForward:
      if (const auto link = graph.link(action))
        add(Product::SendForward, link->from, k, link->index);
      break;
    case Op::SendBackward:
      add(Product::Gradient, s, k);
      break;
    case Op::RecvBackward:
      if (const auto link = graph.link(action))
        add(Product::SendBackward, link->to, k, link->index);
      break;
    case Op::ReduceGrad:
    case Op::OptimizerStep:
      break;
  }
}

/// Number of an action: rank by rank, in program order.
using Node = std::uint32_t;

/// Whether the lists of a graph stand.
enum class ListOrder : std::uint8_t {
  Fixed,  ///< they do: what a rank's order implies is not an edge
  Open,   ///< their order is still to be found: every need is an edge
};

/// Nodes are the actions of `program` (rank 0 first, in order). Edges into a node: its predecessor
/// on the rank (implied), and the producers of what it needs:
///   needs() of dependencies.hpp, where a rank-crossing edge runs through its SEND and RECV if the
///   program has them;
///   REDUCE_GRAD(s) <- the B or W of s on its own rank, and whatever comes before the REDUCE_GRAD
///   of s on the ranks of the other copies (a reduction starts when all copies have reached it),
///   and of the stages that s is tied to;
///   STEP <- every REDUCE_GRAD, B and W of the rank.
/// A producer on the same rank that stands earlier in its list is left out, because program order
/// implies it, unless it is a RECV: a RECV only posts, and what uses its message waits. The other
/// producers of a valid program are all on other ranks. With open lists nothing is left out.
/// The program must outlive the graph. A missing producer gives no edge; of a repeated action the
/// first counts. Throws InvalidArgument when the program has another number of ranks than its
/// shape, an action lies outside the shape, there are 2^31 actions or more, or open lists repeat an
/// action.
/// Cost: O(actions); 4 bytes per action where it waits for no more than one other, as all but
/// REDUCE_GRAD and STEP do in a valid chain, and 4 more for each and for their number where it
/// waits for several. Thread-safety: immutable, share freely.
class Graph {
 public:
  explicit Graph(const Program& program, ListOrder order = ListOrder::Fixed);
  explicit Graph(const Program&& program, ListOrder order = ListOrder::Fixed) = delete;

  [[nodiscard]] std::size_t size() const { return first_.back(); }
  [[nodiscard]] const Program& program() const { return *program_; }
  /// What flows between the stages of the program's shape.
  [[nodiscard]] const StageGraph& stage_graph() const { return stage_graph_; }
  /// Whether the program has sends or receives.
  [[nodiscard]] bool has_messages() const { return has_messages_; }

  /// Whether no action sends more than one message: in a chain, and where sends are written out.
  [[nodiscard]] bool gives_once() const { return has_messages_ || stage_graph_.is_chain(); }

  /// Whether any action leads an overlapped pair.
  [[nodiscard]] bool has_pairs() const { return has_pairs_; }
  /// Whether the program has REDUCE_GRAD or STEP.
  [[nodiscard]] bool has_joint_actions() const { return has_joint_actions_; }
  /// Whether an action needs one that stands later in its own list (or itself): the program can
  /// never end.
  [[nodiscard]] bool has_wrong_lists() const { return has_wrong_lists_; }

  /// First node of a rank; node - first(rank) is the position in its list. `first(Rank{ranks})` is
  /// size().
  [[nodiscard]] Node first(Rank rank) const { return first_[rank.index()]; }
  /// Of every rank, and size() behind them.
  [[nodiscard]] std::span<const Node> first() const { return first_; }
  /// Cost: O(log ranks).
  [[nodiscard]] Rank rank(Node node) const;
  [[nodiscard]] std::size_t position(Node node) const { return node - first(rank(node)); }
  [[nodiscard]] const Action& action(Node node) const;

  /// Fetches what producers(node) will read into the cache: a hint, for any number.
  void prefetch(Node node) const { __builtin_prefetch(sole_.data() + node); }

  /// Producers this node waits for; with fixed lists without what program order implies.
  [[nodiscard]] std::span<const Node> producers(Node node) const {
    const Node& sole = sole_[node];
    if (sole < kSeveral) return {&sole, 1};
    if (sole == kNone) return {};
    const Node* const number = producers_.data() + (sole - kSeveral);
    return {number + 1, *number};
  }

 private:
  friend class GraphBuilder;

  static constexpr Node kNone = std::numeric_limits<Node>::max();
  static constexpr Node kSeveral = Node{1} << 31U;  ///< no node; from here on a place in producers_

  const Program* program_;
  StageGraph stage_graph_;
  bool has_messages_ = false;
  bool has_pairs_ = false;
  bool has_joint_actions_ = false;
  bool has_wrong_lists_ = false;
  std::vector<Node> first_;      // ranks + 1 entries
  std::vector<Node> sole_;       // by node: its one producer, kNone, or kSeveral and their place
  std::vector<Node> producers_;  // of nodes that have several: their number, then they
};

}  // namespace millrace
