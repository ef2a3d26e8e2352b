// See optimizer_shards.hpp.
#include "training/optimizer_shards.hpp"

#include <algorithm>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/training/gradient_norm.hpp"
#include "training/update.hpp"

namespace millrace {
namespace {

constexpr Label kLabel = Label::OptimizerShards;

ProcessGroup copies_of(const GridSeat& seat) {
  return {*seat.endpoint(), seat.grid().processes_at(seat.place()), 1};
}

std::size_t size_of(const StateEntry& entry) {
  return static_cast<std::size_t>(entry.parameter->value.elements());
}

/// Elements of a share, behind each other in one tensor.
template <class Share>
std::size_t elements_of(const std::vector<Share>& shares) {
  std::size_t all = 0;
  for (const Share& share : shares) all += share.last - share.first;
  return all;
}

}  // namespace

void share_out(std::span<StateEntry> entries, int copies, int copy) {
  const auto parts = static_cast<std::size_t>(copies), own = static_cast<std::size_t>(copy);
  std::size_t all = 0;
  for (const StateEntry& entry : entries)
    if (entry.is_trained()) all += blocks_of(size_of(entry));
  const std::size_t begin = all * own / parts, end = all * (own + 1) / parts;
  std::size_t at = 0;
  for (StateEntry& entry : entries) {
    if (!entry.is_trained()) continue;
    const std::size_t blocks = blocks_of(size_of(entry));
    const auto in_entry = [&](std::size_t block) {
      const std::size_t own_block = std::clamp(block, at, at + blocks) - at;
      return std::min(size_of(entry), own_block * kNormBlock);
    };
    entry.is_spread = copies > 1;
    entry.first = in_entry(begin);
    entry.last = in_entry(end);
    at += blocks;
  }
}

OptimizerShards::OptimizerShards(TrainingState& state, const GridSeat& seat)
    : state_(&state), place_(seat.place()), copies_(copies_of(seat)) {
  std::vector<StateEntry> theirs;
  for (const StateEntry& entry : entries()) {
    theirs.emplace_back();
    theirs.back().parameter = entry.parameter;
  }
  for (int copy = 0; copy < seat.grid().data(); ++copy) {
    share_out(theirs, seat.grid().data(), copy);
    std::vector<Share>& shares = shares_.emplace_back();
    for (const StateEntry& entry : theirs) shares.push_back({entry.first, entry.last});
  }
}

std::vector<std::vector<double>> OptimizerShards::sums(const Optimizer& optimizer,
                                                       const UpdateSettings& settings) {
  const auto wanted = static_cast<std::size_t>(optimizer.sums());
  if (wanted == 0) return {};
  std::vector<std::size_t> ends;
  for (const StateEntry& entry : entries())
    ends.push_back((ends.empty() ? 0 : ends.back()) + blocks_of(size_of(entry)) * wanted);
  std::vector<double> of_blocks(ends.empty() ? 0 : ends.back(), 0.0);
  const auto of_entry = [&](std::size_t i) {
    const std::size_t begin = i == 0 ? 0 : ends[i - 1];
    return std::span(of_blocks).subspan(begin, ends[i] - begin);
  };
  std::size_t i = 0;
  for (StateEntry& entry : entries()) {
    const std::span<double> blocks = of_entry(i++);
    if (is_moved(entry))
      prepare(entry, optimizer, settings, blocks.subspan(blocks_of(entry.first) * wanted));
  }
  copies_.sum(of_blocks, kLabel);
  std::vector<std::vector<double>> sums;
  for (i = 0; i < ends.size(); ++i) sums.push_back(sums_of_blocks(optimizer, of_entry(i)));
  return sums;
}

void OptimizerShards::share_values() {
  const auto own = static_cast<std::size_t>(copies_.rank());
  Tensor mine(DType::F32, {static_cast<std::int64_t>(elements_of(shares_[own]))});
  auto to = mine.as<float>().begin();
  for (const StateEntry& entry : entries())
    if (entry.is_trained())
      to =
          std::ranges::copy(
              entry.parameter->value.as<float>().subspan(entry.first, entry.last - entry.first), to)
              .out;
  const std::vector<TensorList> all = copies_.all_gather(TensorList(std::move(mine)), kLabel);
  for (std::size_t copy = 0; copy < all.size(); ++copy) {
    if (copy == own) continue;
    std::span<const float> from = all[copy][0].as<float>();
    if (from.size() != elements_of(shares_[copy]))
      throw Mismatch("copy " + std::to_string(copy) + " of the pipeline has moved " +
                     std::to_string(from.size()) + " weights of place " +
                     std::to_string(place_.value) + ", which has another share");
    for (std::size_t i = 0; i < entries().size(); ++i) {
      const auto [first, last] = shares_[copy][i];
      if (!entries()[i].is_trained()) continue;
      std::ranges::copy(
          from.first(last - first),
          entries()[i].parameter->value.as<float>().begin() + static_cast<std::ptrdiff_t>(first));
      from = from.subspan(last - first);
    }
  }
}

void OptimizerShards::collect(const Use& use, bool values_alone) {
  std::vector<std::string_view> slots;
  for (std::size_t i = 2; i < state_->parts().size(); ++i) slots.push_back(state_->parts()[i]);
  for (const StateEntry& entry : entries()) {
    if (!entry.is_spread) continue;
    std::vector<std::string_view> parts;
    TensorList mine;
    if (entry.master) {
      parts.emplace_back("value");
      mine.push_back(entry.master.clone());
    }
    for (std::size_t i = 0; i < slots.size() && !values_alone; ++i) {
      parts.push_back(slots[i]);
      mine.push_back(entry.slots[i].clone());
    }
    if (mine.empty()) continue;
    const std::vector<TensorList> pieces = copies_.gather(0, std::move(mine), kLabel);
    if (!pieces.empty()) use_pieces(entry, pieces, parts, use);
  }
}

/// Shares ascend with their copies.
void OptimizerShards::use_pieces(const StateEntry& entry,
                                 const std::vector<TensorList>& pieces,
                                 std::span<const std::string_view> parts,
                                 const Use& use) const {
  for (std::size_t part = 0; part < parts.size(); ++part) {
    Tensor whole(DType::F32, entry.parameter->value.dims());
    auto to = whole.as<float>().begin();
    for (const TensorList& piece : pieces) to = std::ranges::copy(piece[part].as<float>(), to).out;
    use(entry, parts[part], whole);
  }
}

}  // namespace millrace
