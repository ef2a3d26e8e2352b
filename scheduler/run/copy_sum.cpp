// Blocks on their way to who adds them, and sums on their way back.
#include "run/copy_sum.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "millrace/core/sum_tree.hpp"
#include "run/gradient_sum.hpp"

namespace millrace::run {

namespace {

constexpr int kParts = 1;
constexpr int kSums = 2;

}  // namespace

CopySum::CopySum(const HostedStage& hosted, const GridSeat& seat, bool at_once)
    : hosted_(hosted), seat_(&seat), parameters_(hosted.body->parameters()), at_once_(at_once) {
  for (const Parameter* parameter : parameters_) {
    require(parameter->gradient.dtype() == DType::F32, [&] {
      return "gradients of copies are added in f32; that of '" + parameter->name + "' is " +
             name_of(parameter->gradient.dtype());
    });
    ends_.push_back((ends_.empty() ? 0 : ends_.back()) +
                    static_cast<std::size_t>(parameter->gradient.elements()));
  }
}

CopySum::Block CopySum::block(int copy) const {
  const std::size_t all = ends_.empty() ? 0 : ends_.back();
  const auto copies = static_cast<std::size_t>(seat_->grid().data());
  const auto number = static_cast<std::size_t>(copy);
  return {all * number / copies, all * (number + 1) / copies};
}

Rank CopySum::process(int copy) const {
  return seat_->grid().process(copy, seat_->place());
}

/// Replica numbers from 1 on and micro-batches from 1 on: never those of collectives, nor of
/// gradients on their way to other places.
MessageTag CopySum::tag(const StepSettings& settings, int round, int from) const {
  return {settings.step,
          Direction::Collective,
          Replica{hosted_.replica.value + 1},
          hosted_.stage,
          MicroBatch{round},
          Slice{from}};
}

/// Calls use(numbers, place): the parts of the gradients that make up a block, and where in it each
/// begins.
template <class Use>
void CopySum::for_each_piece(Block block, const Use& use) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const std::size_t start = i == 0 ? 0 : ends_[i - 1];
    const std::size_t first = std::max(block.first, start);
    const std::size_t last = std::min(block.last, ends_[i]);
    if (first < last)
      use(parameters_[i]->gradient.as<float>().subspan(first - start, last - first),
          first - block.first);
  }
}

Tensor CopySum::take(Block block, TensorPool& pool) const {
  Tensor numbers = pool.make(DType::F32, {static_cast<std::int64_t>(block.last - block.first)});
  for_each_piece(block, [&](std::span<const float> piece, std::size_t place) {
    std::ranges::copy(piece, numbers.as<float>().begin() + static_cast<std::ptrdiff_t>(place));
  });
  return numbers;
}

void CopySum::put(Block block, const Tensor& numbers) const {
  for_each_piece(block, [&](std::span<float> piece, std::size_t place) {
    std::ranges::copy(numbers.as<float>().subspan(place, piece.size()), piece.begin());
  });
}

void CopySum::start(const StepSettings& settings, bool has_sum, TensorPool& pool) {
  has_sum_ = has_sum;
  progress_ = Progress::Started;
  if (parameters_.empty()) return;
  for (int copy = 0; copy < seat_->grid().data(); ++copy) {
    if (copy == seat_->copy()) continue;
    TensorList part;
    if (has_sum) part.push_back(take(block(copy), pool));
    seat_->endpoint()->send(process(copy), tag(settings, kParts, seat_->copy()), std::move(part));
  }
}

TensorList CopySum::received(const StepSettings& settings,
                             int round,
                             int from,
                             std::size_t length,
                             Deadline deadline) const {
  TensorList message =
      seat_->endpoint()->receive(process(from), tag(settings, round, from), deadline);
  const bool fits = message.empty() || (message.size() == 1 && message[0].dtype() == DType::F32 &&
                                        message[0].elements() == static_cast<std::int64_t>(length));
  if (!fits)
    throw Mismatch("copy " + std::to_string(from) + " of the pipeline sends gradients of stage " +
                   std::to_string(hosted_.stage.value) + " that are not " + std::to_string(length) +
                   " f32 numbers, as here");
  return message;
}

/// What every copy has of this one's block, by copy.
std::vector<std::optional<Tensor>> CopySum::parts(const StepSettings& settings,
                                                  Deadline deadline,
                                                  TensorPool& pool) const {
  const Block mine = block(seat_->copy());
  std::vector<std::optional<Tensor>> all(static_cast<std::size_t>(seat_->grid().data()));
  for (int copy = 0; copy < seat_->grid().data(); ++copy) {
    std::optional<Tensor>& part = all[static_cast<std::size_t>(copy)];
    if (copy == seat_->copy()) {
      if (has_sum_) part = take(mine, pool);
      continue;
    }
    TensorList message = received(settings, kParts, copy, mine.last - mine.first, deadline);
    if (!message.empty()) part = std::move(message[0]);
  }
  return all;
}

/// In the order of the copies, whichever came first.
std::optional<Tensor> CopySum::added(std::vector<std::optional<Tensor>> parts,
                                     AccumulateOrder order) const {
  const auto add = [&](Tensor& sum, const Tensor& term) { add_gradient(sum, term, hosted_.stage); };
  if (order == AccumulateOrder::Tree) {
    const int copies = static_cast<int>(parts.size());
    PartialSums<Tensor> tree(SumTree(copies), {0, copies});
    for (int copy = 0; copy < copies; ++copy)
      tree.give(copy, std::move(parts[static_cast<std::size_t>(copy)]), add);
    return tree.take();
  }
  for (std::size_t copy = 1; copy < parts.size(); ++copy) add(*parts.front(), *parts[copy]);
  return std::move(parts.front());
}

void CopySum::finish(const StepSettings& settings, Deadline deadline, TensorPool& pool) {
  progress_ = Progress::Done;
  if (parameters_.empty()) return;
  const int own = seat_->copy();
  const auto sum = added(parts(settings, deadline, pool), settings.order);
  for (int copy = 0; copy < seat_->grid().data(); ++copy) {
    if (copy == own) continue;
    TensorList given;
    if (sum) given.push_back(copy_into(pool, *sum));
    seat_->endpoint()->send(process(copy), tag(settings, kSums, own), std::move(given));
  }
  if (sum) put(block(own), *sum);
  for (int copy = 0; copy < seat_->grid().data(); ++copy) {
    if (copy == own) continue;
    const Block of = block(copy);
    const TensorList message = received(settings, kSums, copy, of.last - of.first, deadline);
    if (!message.empty()) put(of, message[0]);
  }
}

}  // namespace millrace::run
