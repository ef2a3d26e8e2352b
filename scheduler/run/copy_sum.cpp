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

void CopySum::begin_step() {
  progress_ = Progress::None;
  messages_.clear();
}

void CopySum::begin_round() {
  messages_.clear();
  messages_.resize(static_cast<std::size_t>(seat_->grid().data()));
}

void CopySum::start(const StepSettings& settings, bool has_sum, TensorPool& pool) {
  has_sum_ = has_sum;
  progress_ = parameters_.empty() ? Progress::Done : Progress::Started;
  begin_round();
  if (parameters_.empty()) return;
  for (int copy = 0; copy < seat_->grid().data(); ++copy) {
    if (copy == seat_->copy()) continue;
    TensorList part;
    if (has_sum) part.push_back(take(block(copy), pool));
    seat_->endpoint()->send(process(copy), tag(settings, kParts, seat_->copy()), std::move(part));
  }
}

/// One message of a round; nothing where it has not come and nobody waits.
std::optional<TensorList> CopySum::received(const StepSettings& settings,
                                            int round,
                                            int from,
                                            Patience patience) const {
  const MessageTag wanted = tag(settings, round, from);
  std::optional<TensorList> message;
  if (patience)
    message = seat_->endpoint()->receive(process(from), wanted, *patience);
  else
    message = seat_->endpoint()->try_receive(process(from), wanted);
  if (!message) return message;
  const Block of = block(round == kParts ? seat_->copy() : from);
  const auto length = static_cast<std::int64_t>(of.last - of.first);
  const bool fits =
      message->empty() || (message->size() == 1 && (*message)[0].dtype() == DType::F32 &&
                           (*message)[0].elements() == length);
  if (!fits)
    throw Mismatch("copy " + std::to_string(from) + " of the pipeline sends gradients of stage " +
                   std::to_string(hosted_.stage.value) + " that are not " + std::to_string(length) +
                   " f32 numbers, as here");
  return message;
}

/// Whether those of all other copies are here.
bool CopySum::take_messages(const StepSettings& settings, int round, Patience patience) {
  bool all = true;
  for (int copy = 0; copy < seat_->grid().data(); ++copy) {
    std::optional<TensorList>& message = messages_[static_cast<std::size_t>(copy)];
    if (copy == seat_->copy() || message) continue;
    message = received(settings, round, copy, patience);
    all = all && message.has_value();
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

/// What every copy has of this one's block, added and given to all.
void CopySum::add_parts(const StepSettings& settings, TensorPool& pool) {
  const int own = seat_->copy();
  std::vector<std::optional<Tensor>> parts(messages_.size());
  for (std::size_t copy = 0; copy < parts.size(); ++copy)
    if (std::optional<TensorList>& message = messages_[copy]; message && !message->empty())
      parts[copy] = std::move((*message)[0]);
  if (has_sum_) parts[static_cast<std::size_t>(own)] = take(block(own), pool);
  const auto sum = added(std::move(parts), settings.order);
  for (int copy = 0; copy < seat_->grid().data(); ++copy) {
    if (copy == own) continue;
    TensorList given;
    if (sum) given.push_back(copy_into(pool, *sum));
    seat_->endpoint()->send(process(copy), tag(settings, kSums, own), std::move(given));
  }
  if (sum) put(block(own), *sum);
}

void CopySum::put_sums() {
  for (int copy = 0; copy < seat_->grid().data(); ++copy)
    if (const auto& message = messages_[static_cast<std::size_t>(copy)];
        message && !message->empty())
      put(block(copy), (*message)[0]);
}

void CopySum::go_on(const StepSettings& settings, TensorPool& pool, Patience patience) {
  if (progress_ == Progress::Started && take_messages(settings, kParts, patience)) {
    add_parts(settings, pool);
    progress_ = Progress::Added;
    begin_round();
  }
  if (progress_ == Progress::Added && take_messages(settings, kSums, patience)) {
    put_sums();
    progress_ = Progress::Done;
    messages_.clear();
  }
}

void CopySum::go_on(const StepSettings& settings, TensorPool& pool) {
  go_on(settings, pool, std::nullopt);
}

void CopySum::finish(const StepSettings& settings, Deadline deadline, TensorPool& pool) {
  go_on(settings, pool, deadline);
}

}  // namespace millrace::run
