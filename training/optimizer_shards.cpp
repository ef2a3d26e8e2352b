#include "training/optimizer_shards.hpp"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/training/optimizer.hpp"
#include "training/update.hpp"

namespace millrace {
namespace {

constexpr Label kLabel = Label::OptimizerShards;

ProcessGroup copies_of(const GridPosition& seat) {
  return {*seat.endpoint(), seat.grid().processes_at(seat.place()), 1};
}

std::size_t size_of(const Parameter& parameter) {
  return static_cast<std::size_t>(parameter.value.elements());
}

bool is_trained(const Parameter& parameter) {
  return parameter.role == ParameterRole::Trained;
}

std::vector<const Parameter*> parameters_of(std::span<const StateEntry> entries) {
  std::vector<const Parameter*> parameters;
  for (const StateEntry& entry : entries) parameters.push_back(entry.parameter);
  return parameters;
}

std::span<float> part_of(Tensor& tensor, ElementRange range) {
  return tensor.as<float>().subspan(range.first, range.last - range.first);
}

}  // namespace

std::vector<std::vector<ElementRange>> shares_of(std::span<const Parameter* const> parameters,
                                                 int copies) {
  const auto count = static_cast<std::size_t>(copies);
  std::size_t all = 0;
  for (const Parameter* parameter : parameters)
    if (is_trained(*parameter)) all += blocks_of(size_of(*parameter));
  std::vector<std::vector<ElementRange>> shares(parameters.size());
  std::size_t at = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!is_trained(*parameters[i])) continue;
    const std::size_t size = size_of(*parameters[i]), blocks = blocks_of(size);
    const auto border = [&](std::size_t copy) {
      const std::size_t own_block = std::clamp(all * copy / count, at, at + blocks) - at;
      return std::min(size, own_block * kNormBlock);
    };
    for (std::size_t copy = 0; copy < count; ++copy)
      shares[i].push_back({border(copy), border(copy + 1)});
    at += blocks;
  }
  return shares;
}

void share_out(std::span<HostedStage> stages, int copies) {
  std::vector<const Parameter*> parameters;
  for (const HostedStage& hosted : stages)
    for (const Parameter* parameter : hosted.body->parameters()) parameters.push_back(parameter);
  std::vector<std::vector<ElementRange>> shares = shares_of(parameters, copies);
  auto next = std::make_move_iterator(shares.begin());
  for (HostedStage& hosted : stages) {
    const auto end = next + static_cast<std::ptrdiff_t>(hosted.body->parameters().size());
    hosted.shares.assign(next, end);
    next = end;
  }
}

void share_out(std::span<StateEntry> entries, int copies, int copy) {
  const auto shares = shares_of(parameters_of(entries), copies);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (shares[i].empty()) continue;
    entries[i].is_spread = copies > 1;
    entries[i].first = shares[i][static_cast<std::size_t>(copy)].first;
    entries[i].last = shares[i][static_cast<std::size_t>(copy)].last;
  }
}

OptimizerShards::OptimizerShards(TrainingState& state, const GridPosition& seat)
    : state_(&state),
      place_(seat.place()),
      copies_(copies_of(seat)),
      shares_(shares_of(parameters_of(entries()), seat.grid().data())) {}

std::vector<double> OptimizerShards::squares_of_blocks() {
  std::vector<double> squares;
  for (const StateEntry& entry : entries()) {
    if (!is_moved(entry)) continue;
    std::span<const float> left =
        part_of(entry.parameter->gradient, {.first = entry.first, .last = entry.last});
    for (; !left.empty(); left = left.subspan(std::min(left.size(), kNormBlock)))
      squares.push_back(sum_of_squares(left.first(std::min(left.size(), kNormBlock))));
  }
  return squares;
}

/// Shares ascend with their copies, and so do the blocks of every entry.
std::vector<double> OptimizerShards::sums_of_squares(std::span<const double> of_blocks) {
  Tensor mine = Tensor::uninitialised(DType::F64, {static_cast<std::int64_t>(of_blocks.size())});
  std::ranges::copy(of_blocks, mine.as<double>().begin());
  const std::vector<TensorList> all = copies_.gather(0, TensorList(std::move(mine)), kLabel);
  std::vector<double> sums(all.empty() ? 0 : entries().size(), 0.0);
  for (std::size_t copy = 0; copy < all.size(); ++copy) {
    std::span<const double> from = all[copy][0].as<double>();
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if (!is_moved(entries()[i])) continue;
      const auto [first, last] = shares_[i][copy];
      const std::size_t blocks = blocks_of(last - first);
      require_share(copy, blocks <= from.size());
      for (const double of_block : from.first(blocks)) sums[i] += of_block;
      from = from.subspan(blocks);
    }
    require_share(copy, from.empty());
  }
  return sums;
}

std::vector<std::vector<double>> OptimizerShards::sums(const Optimizer& optimizer,
                                                       const UpdateSettings& settings) {
  const auto wanted = static_cast<std::size_t>(optimizer.sums());
  if (wanted == 0) return {};
  std::vector<std::size_t> ends;
  for (const StateEntry& entry : entries())
    ends.push_back((ends.empty() ? 0 : ends.back()) +
                   blocks_of(size_of(*entry.parameter)) * wanted);
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

Tensor OptimizerShards::own_shares(Part part) {
  const auto own = static_cast<std::size_t>(copies_.rank());
  std::size_t elements = 0;
  for (const auto& shares : shares_)
    if (!shares.empty()) elements += shares[own].last - shares[own].first;
  Tensor mine = Tensor::uninitialised(DType::F32, {static_cast<std::int64_t>(elements)});
  auto to = mine.as<float>().begin();
  for (std::size_t i = 0; i < shares_.size(); ++i)
    if (!shares_[i].empty())
      to = std::ranges::copy(part_of(entries()[i].parameter->*part, shares_[i][own]), to).out;
  return mine;
}

void OptimizerShards::take_shares(std::size_t copy, Part part, const Tensor& numbers) {
  std::span<const float> from = numbers.as<float>();
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    if (shares_[i].empty()) continue;
    const std::span<float> to = part_of(entries()[i].parameter->*part, shares_[i][copy]);
    require_share(copy, to.size() <= from.size());
    std::ranges::copy(from.first(to.size()), to.begin());
    from = from.subspan(to.size());
  }
  require_share(copy, from.empty());
}

void OptimizerShards::share(Part part) {
  const std::vector<TensorList> all = copies_.all_gather(TensorList(own_shares(part)), kLabel);
  for (std::size_t copy = 0; copy < all.size(); ++copy)
    if (copy != static_cast<std::size_t>(copies_.rank())) take_shares(copy, part, all[copy][0]);
}

void OptimizerShards::share_values() {
  share(&Parameter::value);
}

void OptimizerShards::share_gradients() {
  share(&Parameter::gradient);
}

void OptimizerShards::require_share(std::size_t copy, bool fits) const {
  if (!fits)
    throw Mismatch("copy " + std::to_string(copy) +
                   " of the pipeline moves another share of place " + std::to_string(place_.value) +
                   " than it does here");
}

/// What is spread of an entry.
std::vector<OptimizerShards::SpreadPart> OptimizerShards::spread_parts(const StateEntry& entry,
                                                                       bool values_alone) const {
  std::vector<SpreadPart> parts;
  if (!entry.is_spread) return parts;
  if (entry.master) parts.push_back({"value", &entry.master});
  for (std::size_t i = 0; i < entry.slots.size() && !values_alone; ++i)
    parts.push_back({state_->parts()[i + 2], &entry.slots[i]});
  return parts;
}

/// Shares ascend with their copies.
void OptimizerShards::collect(const Use& use, bool values_alone) {
  for (const StateEntry& entry : entries()) {
    const std::vector<SpreadPart> parts = spread_parts(entry, values_alone);
    if (parts.empty()) continue;
    TensorList mine;
    for (const SpreadPart& part : parts) mine.push_back(part.own->clone());
    const std::vector<TensorList> pieces = copies_.gather(0, std::move(mine), kLabel);
    for (std::size_t i = 0; i < parts.size() && !pieces.empty(); ++i) {
      Tensor whole = Tensor::uninitialised(DType::F32, entry.parameter->value.dims());
      auto to = whole.as<float>().begin();
      for (const TensorList& piece : pieces) to = std::ranges::copy(piece[i].as<float>(), to).out;
      use(entry, parts[i].name, whole);
    }
  }
}

Tensor OptimizerShards::own_state() {
  std::vector<const Tensor*> tensors;
  std::int64_t elements = 0;
  for (const StateEntry& entry : entries())
    for (const SpreadPart& part : spread_parts(entry, false)) {
      tensors.push_back(part.own);
      elements += part.own->elements();
    }
  Tensor state = Tensor::uninitialised(DType::F32, {elements});
  auto to = state.as<float>().begin();
  for (const Tensor* tensor : tensors) to = std::ranges::copy(tensor->as<float>(), to).out;
  return state;
}

void OptimizerShards::join(std::span<const Tensor> states, const Use& use) {
  std::vector<std::span<const float>> left;
  for (const Tensor& state : states) left.push_back(state.as<float>());
  for (std::size_t i = 0; i < shares_.size(); ++i)
    for (const SpreadPart& part : spread_parts(entries()[i], false)) {
      Tensor whole = Tensor::uninitialised(DType::F32, entries()[i].parameter->value.dims());
      auto to = whole.as<float>().begin();
      for (std::size_t copy = 0; copy < left.size(); ++copy) {
        const std::size_t size = shares_[i][copy].last - shares_[i][copy].first;
        require_share(copy, size <= left[copy].size());
        to = std::ranges::copy(left[copy].first(size), to).out;
        left[copy] = left[copy].subspan(size);
      }
      use(entries()[i], part.name, whole);
    }
  for (std::size_t copy = 0; copy < left.size(); ++copy) require_share(copy, left[copy].empty());
}

}  // namespace millrace
