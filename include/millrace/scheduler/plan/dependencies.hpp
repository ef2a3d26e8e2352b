// What an action needs before it may start. One function, used by the graph, the verifier and the
// generators that search; nothing else in the library knows the rules of the pipeline.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "millrace/scheduler/plan/action.hpp"
#include "millrace/scheduler/plan/shape.hpp"

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
};

/// Where the stages and the slices end: all that the rules ask of a shape.
struct PipelineEnds {
  std::int32_t stages = 0;
  std::int32_t slices = 1;
};

/// Calls `use(Need)` for everything `action` waits for, in its own replica and micro-batch:
///   F(s,k) <- F(s-1,k), F(s,k-1);  B or I(s,k) <- F(s,k), recompute(s,k), gradient(s+1,k),
///   gradient(s,k+1);  W <- I;  recompute <- F;  a send <- what it sends;  a receive <- its send.
/// A need that no action of the program produces (no recompute, say) binds nothing.
/// REDUCE_GRAD and the optimizer step have no unit and no needs here. Cost: O(1).
template <class Use>
void for_each_need(const PipelineEnds& ends, const Action& action, Use&& use) {
  const std::int32_t s = action.stage.value;
  const std::int32_t k = action.slice.value;
  const bool last_stage = s + 1 == ends.stages;
  const auto add = [&](Product product, std::int32_t stage, std::int32_t slice)
      __attribute__((always_inline)) {  // so that each case knows its product
    use(Need{product, Stage{stage}, Slice{slice}});
  };
  switch (action.op) {
    case Op::Forward:
      if (s > 0) add(Product::Forward, s - 1, k);
      if (k > 0) add(Product::Forward, s, k - 1);
      break;
    case Op::Backward:
    case Op::BackwardInput:
      add(Product::Forward, s, k);
      add(Product::Recompute, s, k);
      if (!last_stage) add(Product::Gradient, s + 1, k);
      if (k + 1 < ends.slices) add(Product::Gradient, s, k + 1);
      break;
    case Op::BackwardWeight:
      add(Product::Gradient, s, k);
      break;
    case Op::Recompute:
    case Op::SendForward:
      add(Product::Forward, s, k);
      break;
    case Op::RecvForward:
      if (s > 0) add(Product::SendForward, s - 1, k);
      break;
    case Op::SendBackward:
      add(Product::Gradient, s, k);
      break;
    case Op::RecvBackward:
      if (!last_stage) add(Product::SendBackward, s + 1, k);
      break;
    case Op::ReduceGrad:
    case Op::OptimizerStep:
      break;
  }
}

/// The needs of one action: at most four.
class Needs {
 public:
  constexpr void add(const Need& need) { items_[size_++] = need; }

  [[nodiscard]] constexpr const Need* begin() const { return items_.data(); }
  [[nodiscard]] constexpr const Need* end() const { return items_.data() + size_; }

 private:
  std::array<Need, 4> items_{};
  std::size_t size_ = 0;
};

/// The needs of `action` as a list. Cost: O(1).
[[nodiscard]] inline Needs needs(const Shape& shape, const Action& action) {
  Needs result;
  const PipelineEnds ends{shape.stages(), shape.slices};
  for_each_need(ends, action, [&](const Need& need) { result.add(need); });
  return result;
}

/// Stages that share one weight (an embedding and the head): their gradients are summed before the
/// step, like those of a stage with several copies.
/// Thread-safety: immutable, share freely.
struct TiedGroup {
  std::vector<Stage> stages;
};

}  // namespace millrace
