// What an action needs before it may start. One function, used by the graph, the verifier and the
// generators that search; nothing else in the library knows the rules of the pipeline.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "millrace/scheduler/plan/action.hpp"
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

}  // namespace millrace
