// Leaves on their way into the tree, and the sum on its way out.
#include "run/gradient_tree.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "run/gradient_sum.hpp"

namespace millrace::run {

void GradientTree::begin_step(const SumTree& tree, LeafRange node, int passes_per_leaf) {
  clear();
  sums_.emplace(tree, node);
  passes_per_leaf_ = passes_per_leaf;
}

/// A copy of the gradients, which are 0 afterwards.
TensorList GradientTree::take_gradients(TensorPool& pool, StashMeter& meter) const {
  TensorList taken;
  for (Parameter* parameter : parameters_) {
    Tensor& gradient = parameter->gradient;
    taken.push_back(copy_into(pool, gradient));
    if (gradient.bytes() != 0) std::memset(gradient.data(), 0, gradient.bytes());
  }
  meter.add(taken.bytes());
  return taken;
}

/// Of a sum that is dropped then.
void GradientTree::put_gradients(const TensorList& sum, StashMeter& meter) const {
  meter.remove(sum.bytes());
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (sum[i].bytes() != 0)
      std::memcpy(parameters_[i]->gradient.data(), sum[i].data(), sum[i].bytes());
}

void GradientTree::open(int leaf, TensorPool& pool, StashMeter& meter) {
  if (open_ && open_->number == leaf) return;
  if (open_) {
    open_->sum = take_gradients(pool, meter);
    interrupted_.push_back(*std::exchange(open_, std::nullopt));
  }
  const auto begun = std::ranges::find(interrupted_, leaf, &Leaf::number);
  if (begun == interrupted_.end()) {
    open_.emplace(Leaf{leaf});
    return;
  }
  put_gradients(begun->sum, meter);
  open_.emplace(Leaf{leaf, begun->passes});
  interrupted_.erase(begun);
}

void GradientTree::close(bool is_empty, TensorPool& pool, StashMeter& meter) {
  if (++open_->passes < passes_per_leaf_) return;
  std::optional<TensorList> sum;
  if (!is_empty) sum = take_gradients(pool, meter);
  sums_->give(open_->number, std::move(sum), [&](TensorList& to, const TensorList& term) {
    for (std::size_t i = 0; i < to.size(); ++i) add_gradient(to[i], term[i], stage_);
    meter.remove(term.bytes());
  });
  open_.reset();
  if (!sums_->is_complete()) return;
  const auto whole = sums_->take();
  if (whole) put_gradients(*whole, meter);
  has_sum_ = whole.has_value();
  given_ = true;
}

void GradientTree::clear() noexcept {
  if (sums_) sums_->clear();
  open_.reset();
  interrupted_.clear();
  given_ = has_sum_ = false;
}

}  // namespace millrace::run
