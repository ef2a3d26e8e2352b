// Blocks on their way to who adds them, and sums on their way back.
#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "core/sum_tree.hpp"
#include "run/gradients.hpp"

namespace millrace::run {

namespace {

constexpr int kParts = 1;
constexpr int kSums = 2;

std::span<float> part_of(Parameter& parameter, ElementRange range) {
  return parameter.gradient.as<float>().subspan(range.first, range.last - range.first);
}

/// In elements.
template <class Pieces>
std::int64_t length_of(const Pieces& pieces) {
  std::size_t length = 0;
  for (const auto& [parameter, range] : pieces) length += range.last - range.first;
  return static_cast<std::int64_t>(length);
}

}  // namespace

GradientAllReduce::GradientAllReduce(const HostedStage& hosted,
                                     const GridPosition& position,
                                     bool at_once,
                                     const std::vector<bool>& needed_whole)
    : hosted_(hosted),
      position_(&position),
      parameters_(hosted.body->parameters()),
      blocks_(static_cast<std::size_t>(position.grid().data())),
      at_once_(at_once) {
  std::vector<bool> is_whole = needed_whole;
  is_whole.resize(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    require(parameters_[i]->gradient.dtype() == DType::F32, [&] {
      return "gradients of copies are added in f32; that of '" + parameters_[i]->name + "' is " +
             name_of(parameters_[i]->gradient.dtype());
    });
    if (hosted.shares.size() <= i || hosted.shares[i].empty()) is_whole[i] = true;
  }
  cut_whole(is_whole);
  parts_ = blocks_;
  cut_shares(is_whole);
}

/// One after the other, into one block per data-parallel replica.
void GradientAllReduce::cut_whole(const std::vector<bool>& is_whole) {
  const auto size = [&](std::size_t i) {
    return is_whole[i] ? static_cast<std::size_t>(parameters_[i]->gradient.elements()) : 0;
  };
  std::size_t all = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) all += size(i);
  gives_sums_ = all > 0;
  for (std::size_t copy = 0; copy < blocks_.size(); ++copy) {
    const std::size_t begin = all * copy / blocks_.size(), end = all * (copy + 1) / blocks_.size();
    std::size_t start = 0;
    for (std::size_t i = 0; i < parameters_.size(); start += size(i), ++i) {
      const std::size_t first = std::max(begin, start), last = std::min(end, start + size(i));
      if (first < last) blocks_[copy].push_back({i, {first - start, last - start}});
    }
  }
}

void GradientAllReduce::cut_shares(const std::vector<bool>& is_whole) {
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    for (std::size_t copy = 0; copy < parts_.size() && !is_whole[i]; ++copy)
      if (const ElementRange range = hosted_.shares[i].at(copy); range.first < range.last)
        parts_[copy].push_back({i, range});
}

const GradientAllReduce::Pieces& GradientAllReduce::pieces(int round, int copy) const {
  return (round == kParts ? parts_ : blocks_)[static_cast<std::size_t>(copy)];
}

Rank GradientAllReduce::process(int copy) const {
  return position_->grid().process(copy, position_->place());
}

/// Replica numbers from 1 on and micro-batches from 1 on: never those of collectives, nor of
/// gradients on their way to other places.
MessageTag GradientAllReduce::tag(const StepSettings& settings, int round, int from) const {
  return {settings.step,
          Direction::Collective,
          Replica{hosted_.replica.value + 1},
          hosted_.stage,
          MicroBatch{round},
          Slice{from}};
}

Tensor GradientAllReduce::take(const Pieces& pieces, TensorPool& pool) const {
  Tensor numbers = pool.make(DType::F32, {length_of(pieces)});
  auto to = numbers.as<float>().begin();
  for (const auto& [parameter, range] : pieces)
    to = std::ranges::copy(part_of(*parameters_[parameter], range), to).out;
  return numbers;
}

void GradientAllReduce::put(const Pieces& pieces, const Tensor& numbers) const {
  std::span<const float> from = numbers.as<float>();
  for (const auto& [parameter, range] : pieces) {
    const std::span<float> to = part_of(*parameters_[parameter], range);
    std::ranges::copy(from.first(to.size()), to.begin());
    from = from.subspan(to.size());
  }
}

void GradientAllReduce::begin_step() {
  progress_ = Progress::None;
  messages_.clear();
}

void GradientAllReduce::begin_round() {
  messages_.clear();
  messages_.resize(static_cast<std::size_t>(position_->grid().data()));
}

void GradientAllReduce::start(const StepSettings& settings, bool has_sum, TensorPool& pool) {
  has_sum_ = has_sum;
  progress_ = parameters_.empty() ? Progress::Done : Progress::Started;
  begin_round();
  if (parameters_.empty()) return;
  for (int copy = 0; copy < position_->grid().data(); ++copy) {
    if (copy == position_->copy()) continue;
    TensorList part;
    if (has_sum) part.push_back(take(pieces(kParts, copy), pool));
    position_->endpoint()->send(
        process(copy), tag(settings, kParts, position_->copy()), std::move(part));
  }
}

/// One message of a round; nothing where it has not come and without a deadline.
std::optional<TensorList> GradientAllReduce::received(const StepSettings& settings,
                                                      int round,
                                                      int from,
                                                      OptionalDeadline timeout) const {
  const MessageTag wanted = tag(settings, round, from);
  std::optional<TensorList> message;
  if (timeout)
    message = position_->endpoint()->receive(process(from), wanted, *timeout);
  else
    message = position_->endpoint()->try_receive(process(from), wanted);
  if (!message) return message;
  const std::int64_t length = length_of(pieces(round, round == kParts ? position_->copy() : from));
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
bool GradientAllReduce::take_messages(const StepSettings& settings,
                                      int round,
                                      OptionalDeadline timeout) {
  bool all = true;
  for (int copy = 0; copy < position_->grid().data(); ++copy) {
    std::optional<TensorList>& message = messages_[static_cast<std::size_t>(copy)];
    if (copy == position_->copy() || message) continue;
    message = received(settings, round, copy, timeout);
    all = all && message.has_value();
  }
  return all;
}

/// In the order of the data-parallel replicas, in any order of arrival.
std::optional<Tensor> GradientAllReduce::added(std::vector<std::optional<Tensor>> parts,
                                               AccumulateOrder order) const {
  const auto add = [&](Tensor& sum, const Tensor& term) { add_gradient(sum, term, hosted_.stage); };
  if (order == AccumulateOrder::Tree) {
    const int copies = static_cast<int>(parts.size());
    PartialSums<Tensor> tree(SumTree(copies), {0, copies});
    for (int copy = 0; copy < copies; ++copy)
      tree.give(copy, std::move(parts[static_cast<std::size_t>(copy)]), add);
    return tree.take();
  }
  std::optional<Tensor> sum = std::move(parts.front());
  for (auto& part : std::span(parts).subspan(1)) {
    if (sum && part) add(*sum, *part);
    if (!sum) sum = std::move(part);
  }
  return sum;
}

/// What every copy has of this one's part, added.
void GradientAllReduce::add_parts(const StepSettings& settings, TensorPool& pool) {
  const int own = position_->copy();
  std::vector<std::optional<Tensor>> parts(messages_.size());
  for (std::size_t copy = 0; copy < parts.size(); ++copy)
    if (std::optional<TensorList>& message = messages_[copy]; message && !message->empty())
      parts[copy] = std::move((*message)[0]);
  if (has_sum_) parts[static_cast<std::size_t>(own)] = take(pieces(kParts, own), pool);
  const auto sum = added(std::move(parts), settings.order);
  if (sum) put(pieces(kParts, own), *sum);
  if (gives_sums_) give_sums(settings, sum.has_value(), pool);
}

void GradientAllReduce::give_sums(const StepSettings& settings,
                                  bool has_sum,
                                  TensorPool& pool) const {
  const int own = position_->copy();
  for (int copy = 0; copy < position_->grid().data(); ++copy) {
    if (copy == own) continue;
    TensorList given;
    if (has_sum) given.push_back(take(pieces(kSums, own), pool));
    position_->endpoint()->send(process(copy), tag(settings, kSums, own), std::move(given));
  }
}

void GradientAllReduce::put_sums() {
  for (int copy = 0; copy < position_->grid().data(); ++copy)
    if (const auto& message = messages_[static_cast<std::size_t>(copy)];
        message && !message->empty())
      put(pieces(kSums, copy), (*message)[0]);
}

void GradientAllReduce::go_on(const StepSettings& settings,
                              TensorPool& pool,
                              OptionalDeadline timeout) {
  if (progress_ == Progress::Started && take_messages(settings, kParts, timeout)) {
    add_parts(settings, pool);
    progress_ = gives_sums_ ? Progress::Added : Progress::Done;
    begin_round();
  }
  if (progress_ == Progress::Added && take_messages(settings, kSums, timeout)) {
    put_sums();
    progress_ = Progress::Done;
    messages_.clear();
  }
}

void GradientAllReduce::go_on(const StepSettings& settings, TensorPool& pool) {
  go_on(settings, pool, std::nullopt);
}

void GradientAllReduce::finish(const StepSettings& settings, Deadline deadline, TensorPool& pool) {
  go_on(settings, pool, deadline);
}

}  // namespace millrace::run
