// The fast path of the structural rules. Most programs are right and hold F and B, or F, I and W
// only; that is decided with three bits per unit. Everything else is left to the full check, which
// can also say what is wrong.
#include <cstdint>

#include "plan/verify/structure.hpp"

namespace millrace::plan {

namespace {

class Bits {
 public:
  explicit Bits(std::size_t size) : words_(size / 64 + 1) {}

  [[nodiscard]] bool test(std::size_t at) const {
    return ((words_[at / 64] >> (at % 64)) & 1) != 0;
  }

  /// Whether it was not set before.
  bool set(std::size_t at) {
    const std::uint64_t bit = std::uint64_t{1} << (at % 64);
    std::uint64_t& word = words_[at / 64];
    const bool fresh = (word & bit) == 0;
    word |= bit;
    return fresh;
  }

 private:
  std::vector<std::uint64_t> words_;
};

/// What each unit has had so far.
class Seen {
 public:
  explicit Seen(std::size_t units) : forward_(units), gradient_(units), weight_(units) {}

  /// Whether the unit may run this op now: each once, W after I.
  bool add(Op op, std::size_t unit) {
    switch (op) {
      case Op::Forward:
        return forward_.set(unit);
      case Op::Backward:
        return gradient_.set(unit) && weight_.set(unit);
      case Op::BackwardInput:
        return gradient_.set(unit);
      case Op::BackwardWeight:
        return gradient_.test(unit) && weight_.set(unit);
      default:
        return false;
    }
  }

 private:
  Bits forward_, gradient_, weight_;
};

}  // namespace

/// Whether rules 1 to 4 and 6 hold, as far as that can be told quickly: `false` means nothing.
bool Structure::passes_fast_path() const {
  const Shape& shape = program_.shape;
  const std::int64_t owed = shape.forwards();
  Seen seen(static_cast<std::size_t>(owed));
  std::int64_t forwards = 0, gradients = 0, weights = 0;
  for (std::size_t r = 0; r < program_.ranks.size(); ++r) {
    const Rank rank{static_cast<std::int32_t>(r)};
    for (const Action& action : program_.ranks[r]) {
      if (action.with_next || action.op > Op::BackwardWeight || !inside(rank, action) ||
          !seen.add(action.op, lookup_.index(action.stage, action.micro_batch, action.slice)))
        return false;
      forwards += action.op == Op::Forward ? 1 : 0;
      gradients += gives_input_gradient(action.op) ? 1 : 0;
      weights += gives_weight_gradient(action.op) ? 1 : 0;
    }
  }
  const std::int64_t backwards = shape.forward_only ? 0 : owed;
  return forwards == owed && gradients == backwards && weights == backwards;
}

}  // namespace millrace::plan
