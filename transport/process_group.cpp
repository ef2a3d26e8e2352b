// Small values meet at the first process; large ones in blocks, each summed by its owner.
#include "millrace/transport/process_group.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "millrace/core/error.hpp"

namespace millrace {

namespace {

/// Below this a message's latency weighs more than its bytes.
constexpr std::size_t kBlockBytes = 64 * 1024;
/// A frame's field for the number of a collective has 16 bits; long before it begins anew, every
/// member has taken what had the number before.
constexpr std::int32_t kNumbers = 1 << 16;

template <class T>
Tensor copy_of(std::span<const T> values) {
  Tensor copy(dtype_of<T>(), {static_cast<std::int64_t>(values.size())});
  if (!values.empty()) std::memcpy(copy.data(), values.data(), values.size_bytes());
  return copy;
}

Tensor copy_of(const Tensor& tensor) {
  return tensor ? tensor.clone() : Tensor();
}

TensorList copy_of(const TensorList& tensors) {
  TensorList copy;
  for (std::size_t i = 0; i < tensors.size(); ++i) copy.push_back(copy_of(tensors[i]));
  return copy;
}

template <class T>
void join(std::span<T> into, std::span<const T> term, ReduceOp op) {
  for (std::size_t i = 0; i < into.size(); ++i) {
    if (op == ReduceOp::Sum)
      into[i] += term[i];
    else if (term[i] > into[i] || std::isnan(term[i]))
      into[i] = term[i];
  }
}

/// The values of a message that must hold `count` of type T.
template <class T>
std::span<const T> values_of(const TensorList& message, std::size_t count, Rank from) {
  if (message.size() != 1 || message[0].dtype() != dtype_of<T>() ||
      message[0].elements() != static_cast<std::int64_t>(count))
    throw Mismatch("rank " + std::to_string(from.value) + " takes part in a collective of " +
                   std::to_string(count) + " " + name_of(dtype_of<T>()) + " values with " +
                   (message.size() == 1 ? std::to_string(message[0].elements()) + " " +
                                              name_of(message[0].dtype()) + " values"
                                        : std::to_string(message.size()) + " tensors"));
  return message[0].as<T>();
}

std::vector<Rank> all_ranks(int world) {
  std::vector<Rank> ranks;
  for (int i = 0; i < world; ++i) ranks.emplace_back(i);
  return ranks;
}

}  // namespace

ProcessGroup::ProcessGroup(Endpoint& endpoint, std::chrono::milliseconds patience)
    : ProcessGroup(endpoint, all_ranks(endpoint.world()), 0, patience) {}

ProcessGroup::ProcessGroup(Endpoint& endpoint,
                           std::span<const Rank> processes,
                           int number,
                           std::chrono::milliseconds patience)
    : endpoint_(&endpoint),
      processes_(processes.begin(), processes.end()),
      group_(number),
      patience_(patience) {
  require(std::is_sorted(processes.begin(), processes.end()) &&
              std::adjacent_find(processes.begin(), processes.end()) == processes.end(),
          "the processes of a group are different ones in ascending order");
  const auto own = std::find(processes.begin(), processes.end(), endpoint.rank());
  require(own != processes.end(),
          "rank " + std::to_string(endpoint.rank().value) + " is not a member of its group");
  rank_ = static_cast<int>(own - processes.begin());
}

void ProcessGroup::begin_step(std::uint64_t step) {
  step_ = step;
  number_ = 0;
}

Deadline ProcessGroup::deadline() const {
  return std::chrono::steady_clock::now() + patience_;
}

MessageTag ProcessGroup::next_tag(Label label) {
  MessageTag tag;
  tag.step = step_;
  tag.direction = Direction::Collective;
  tag.stage = Stage{number_};
  tag.micro_batch = MicroBatch{group_};
  tag.slice = Slice{static_cast<std::int32_t>(label)};
  number_ = (number_ + 1) % kNumbers;
  return tag;
}

template <class T>
void ProcessGroup::reduce_at_first(std::span<T> values, ReduceOp op, Label label) {
  const MessageTag there = next_tag(label);
  const MessageTag back = next_tag(label);
  const Rank root = processes_.front();
  if (endpoint_->rank() != root) {
    endpoint_->send(root, there, TensorList(copy_of(std::span<const T>(values))));
    const TensorList result = endpoint_->receive(root, back, deadline());
    std::ranges::copy(values_of<T>(result, values.size(), root), values.begin());
    return;
  }
  for (const Rank process : processes_) {
    if (process == root) continue;
    const TensorList message = endpoint_->receive(process, there, deadline());
    join(values, values_of<T>(message, values.size(), process), op);
  }
  for (const Rank process : processes_)
    if (process != root)
      endpoint_->send(process, back, TensorList(copy_of(std::span<const T>(values))));
}

template <class T>
void ProcessGroup::reduce_by_blocks(std::span<T> values, ReduceOp op, Label label) {
  const MessageTag parts = next_tag(label);
  const MessageTag sums = next_tag(label);
  const Rank self = endpoint_->rank();
  const std::size_t count = processes_.size();
  const auto block = [&](std::size_t i) {
    // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): this rank is a member
    const std::size_t first = values.size() * i / count;
    return values.subspan(first, values.size() * (i + 1) / count - first);
  };

  // 1. Every block goes to its owner (n - 1 messages each way).
  for (std::size_t i = 0; i < count; ++i)
    if (processes_[i] != self)
      endpoint_->send(processes_[i], parts, TensorList(copy_of(std::span<const T>(block(i)))));

  // 2. The owner joins the parts in rank order.
  const auto own = block(static_cast<std::size_t>(
      std::find(processes_.begin(), processes_.end(), self) - processes_.begin()));
  std::vector<T> sum;
  for (const Rank process : processes_) {
    TensorList message;
    if (process != self) message = endpoint_->receive(process, parts, deadline());
    const std::span<const T> part =
        process == self ? std::span<const T>(own) : values_of<T>(message, own.size(), process);
    if (process == processes_.front())
      sum.assign(part.begin(), part.end());
    else
      join(std::span<T>(sum), part, op);
  }
  std::ranges::copy(sum, own.begin());

  // 3. Every owner gives its block to all.
  for (const Rank process : processes_)
    if (process != self)
      endpoint_->send(process, sums, TensorList(copy_of(std::span<const T>(sum))));
  for (std::size_t i = 0; i < count; ++i) {
    if (processes_[i] == self) continue;
    const TensorList message = endpoint_->receive(processes_[i], sums, deadline());
    std::ranges::copy(values_of<T>(message, block(i).size(), processes_[i]), block(i).begin());
  }
}

template <class T>
void ProcessGroup::reduce(std::span<T> values, ReduceOp op, Label label) {
  if (processes_.size() == 1) return;
  if (values.size_bytes() < kBlockBytes)
    reduce_at_first(values, op, label);
  else
    reduce_by_blocks(values, op, label);
}

void ProcessGroup::all_reduce(std::span<double> values, ReduceOp op, Label label) {
  reduce(values, op, label);
}

void ProcessGroup::all_reduce(Tensor& tensor, ReduceOp op, Label label) {
  if (tensor.dtype() == DType::F32) return reduce(tensor.as<float>(), op, label);
  if (tensor.dtype() == DType::F64) return reduce(tensor.as<double>(), op, label);
  throw InvalidArgument(std::string("all_reduce takes f32 or f64, not ") + name_of(tensor.dtype()));
}

void ProcessGroup::broadcast(int root, TensorList& tensors, Label label) {
  if (size() == 1) return;
  const MessageTag tag = next_tag(label);
  if (rank_ != root) {
    tensors = endpoint_->receive(processes_.at(static_cast<std::size_t>(root)), tag, deadline());
    return;
  }
  for (int place = 0; place < size(); ++place)
    if (place != root)
      endpoint_->send(processes_[static_cast<std::size_t>(place)], tag, copy_of(tensors));
}

std::vector<TensorList> ProcessGroup::all_gather(TensorList mine, Label label) {
  std::vector<TensorList> all(processes_.size());
  const MessageTag tag = size() == 1 ? MessageTag() : next_tag(label);
  const auto own = static_cast<std::size_t>(rank_);
  for (std::size_t i = 0; i < all.size(); ++i)
    if (i != own) endpoint_->send(processes_[i], tag, copy_of(mine));
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = i == own ? std::move(mine) : endpoint_->receive(processes_[i], tag, deadline());
  return all;
}

std::vector<TensorList> ProcessGroup::gather(int root, TensorList mine, Label label) {
  const MessageTag tag = next_tag(label);
  std::vector<TensorList> all;
  if (rank_ != root) {
    endpoint_->send(processes_.at(static_cast<std::size_t>(root)), tag, std::move(mine));
    return all;
  }
  for (int place = 0; place < size(); ++place)
    all.push_back(
        place == root
            ? std::exchange(mine, {})
            : endpoint_->receive(processes_[static_cast<std::size_t>(place)], tag, deadline()));
  return all;
}

std::vector<std::string> ProcessGroup::gather(const std::string& mine, Label label) {
  if (size() == 1) return {mine};
  Tensor bytes(DType::U8, {static_cast<std::int64_t>(mine.size())});
  std::copy(mine.begin(), mine.end(), static_cast<char*>(bytes.data()));
  TensorList all;
  for (TensorList& part : gather(0, TensorList(std::move(bytes)), label))
    all.push_back(std::move(part[0]));
  broadcast(0, all, label);
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < all.size(); ++i)
    texts.emplace_back(static_cast<const char*>(all[i].data()), all[i].bytes());
  return texts;
}

void ProcessGroup::barrier(Label label) {
  double nothing = 0;
  all_reduce(std::span<double>(&nothing, 1), ReduceOp::Max, label);
}

}  // namespace millrace
