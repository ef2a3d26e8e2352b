// Small values meet at the first member; large ones in blocks, each summed by its owner.
#include "millrace/transport/collectives.hpp"

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

Collectives::Collectives(Endpoint& endpoint)
    : endpoint_(endpoint), members_(all_ranks(endpoint.world())) {}

Collectives::Collectives(Endpoint& endpoint, std::span<const Rank> members, int group)
    : endpoint_(endpoint), members_(members.begin(), members.end()), group_(group) {
  require(std::is_sorted(members.begin(), members.end()) &&
              std::adjacent_find(members.begin(), members.end()) == members.end(),
          "the members of a group are different ranks in ascending order");
  require(std::find(members.begin(), members.end(), endpoint.rank()) != members.end(),
          "rank " + std::to_string(endpoint.rank().value) + " is not a member of its group");
}

void Collectives::begin_step(std::uint64_t step) {
  step_ = step;
  number_ = 0;
}

MessageTag Collectives::next_tag() {
  MessageTag tag;
  tag.step = step_;
  tag.direction = Direction::Collective;
  tag.stage = Stage{number_};
  tag.micro_batch = MicroBatch{group_};
  tag.slice = Slice{static_cast<std::int32_t>(topic_)};
  number_ = (number_ + 1) % kNumbers;
  return tag;
}

template <class T>
void Collectives::reduce_at_root(std::span<T> values, ReduceOp op, Deadline deadline) {
  const MessageTag there = next_tag();
  const MessageTag back = next_tag();
  const Rank root = members_.front();
  if (endpoint_.rank() != root) {
    endpoint_.send(root, there, TensorList(copy_of(std::span<const T>(values))));
    const TensorList result = endpoint_.receive(root, back, deadline);
    std::ranges::copy(values_of<T>(result, values.size(), root), values.begin());
    return;
  }
  for (const Rank member : members_) {
    if (member == root) continue;
    const TensorList message = endpoint_.receive(member, there, deadline);
    join(values, values_of<T>(message, values.size(), member), op);
  }
  for (const Rank member : members_)
    if (member != root)
      endpoint_.send(member, back, TensorList(copy_of(std::span<const T>(values))));
}

template <class T>
void Collectives::reduce_by_blocks(std::span<T> values, ReduceOp op, Deadline deadline) {
  const MessageTag parts = next_tag();
  const MessageTag sums = next_tag();
  const Rank self = endpoint_.rank();
  const std::size_t count = members_.size();
  const auto block = [&](std::size_t i) {
    // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): this rank is a member
    const std::size_t first = values.size() * i / count;
    return values.subspan(first, values.size() * (i + 1) / count - first);
  };

  // 1. Every block goes to its owner (n - 1 messages each way).
  for (std::size_t i = 0; i < count; ++i)
    if (members_[i] != self)
      endpoint_.send(members_[i], parts, TensorList(copy_of(std::span<const T>(block(i)))));

  // 2. The owner joins the parts in rank order.
  const auto own = block(static_cast<std::size_t>(
      std::find(members_.begin(), members_.end(), self) - members_.begin()));
  std::vector<T> sum;
  for (const Rank member : members_) {
    TensorList message;
    if (member != self) message = endpoint_.receive(member, parts, deadline);
    const std::span<const T> part =
        member == self ? std::span<const T>(own) : values_of<T>(message, own.size(), member);
    if (member == members_.front())
      sum.assign(part.begin(), part.end());
    else
      join(std::span<T>(sum), part, op);
  }
  std::ranges::copy(sum, own.begin());

  // 3. Every owner gives its block to all.
  for (const Rank member : members_)
    if (member != self) endpoint_.send(member, sums, TensorList(copy_of(std::span<const T>(sum))));
  for (std::size_t i = 0; i < count; ++i) {
    if (members_[i] == self) continue;
    const TensorList message = endpoint_.receive(members_[i], sums, deadline);
    std::ranges::copy(values_of<T>(message, block(i).size(), members_[i]), block(i).begin());
  }
}

template <class T>
void Collectives::reduce(std::span<T> values, ReduceOp op, Deadline deadline) {
  if (members_.size() == 1) return;
  if (values.size_bytes() < kBlockBytes)
    reduce_at_root(values, op, deadline);
  else
    reduce_by_blocks(values, op, deadline);
}

void Collectives::all_reduce(std::span<double> values, ReduceOp op, Deadline deadline) {
  reduce(values, op, deadline);
}

void Collectives::all_reduce(Tensor& tensor, ReduceOp op, Deadline deadline) {
  if (tensor.dtype() == DType::F32) return reduce(tensor.as<float>(), op, deadline);
  if (tensor.dtype() == DType::F64) return reduce(tensor.as<double>(), op, deadline);
  throw InvalidArgument(std::string("all_reduce takes f32 or f64, not ") + name_of(tensor.dtype()));
}

void Collectives::broadcast(Rank root, TensorList& tensors, Deadline deadline) {
  const MessageTag tag = next_tag();
  if (endpoint_.rank() != root) {
    tensors = endpoint_.receive(root, tag, deadline);
    return;
  }
  for (const Rank member : members_)
    if (member != root) endpoint_.send(member, tag, copy_of(tensors));
}

std::vector<TensorList> Collectives::gather(Rank root, TensorList mine, Deadline deadline) {
  const MessageTag tag = next_tag();
  std::vector<TensorList> all;
  if (endpoint_.rank() != root) {
    endpoint_.send(root, tag, std::move(mine));
    return all;
  }
  for (const Rank member : members_)
    all.push_back(member == root ? std::exchange(mine, {})
                                 : endpoint_.receive(member, tag, deadline));
  return all;
}

void Collectives::barrier(Deadline deadline) {
  double nothing = 0;
  all_reduce(std::span<double>(&nothing, 1), ReduceOp::Max, deadline);
}

}  // namespace millrace
