// Small values meet at the first process; large ones in blocks, each summed by its owner.
#include "millrace/transport/process_group.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "millrace/core/error.hpp"

namespace millrace {

namespace {

/// Below this a message's latency weighs more than its bytes.
constexpr std::size_t kBlockBytes = 64 * 1024;
/// Of a block: long enough that a message's own cost is small, short enough to be added while it
/// is near.
constexpr std::size_t kPieceBytes = 256 * 1024;
/// A frame's field for the number of a collective has 16 bits; long before it begins again, every
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
  if (op == ReduceOp::Sum) {
    for (std::size_t i = 0; i < into.size(); ++i) into[i] += term[i];
    return;
  }
  for (std::size_t i = 0; i < into.size(); ++i)
    if (term[i] > into[i] || std::isnan(term[i])) into[i] = term[i];
}

/// Joins the parts in their order into `into`, which may be one of them: some numbers at a time,
/// which stay near, so that each part is read once and the result written once.
template <class T>
void join_in_order(std::span<const std::span<const T>> parts, std::span<T> into, ReduceOp op) {
  std::array<T, 2048> near;
  for (std::size_t first = 0; first < into.size(); first += near.size()) {
    const std::size_t count = std::min(near.size(), into.size() - first);
    const std::span<T> joined(near.data(), count);
    std::ranges::copy(parts.front().subspan(first, count), joined.begin());
    for (const std::span<const T> part : parts.subspan(1))
      join(joined, part.subspan(first, count), op);
    std::ranges::copy(joined, into.subspan(first, count).begin());
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

ProcessGroup::ProcessGroup(Endpoint& endpoint, std::chrono::milliseconds timeout)
    : ProcessGroup(endpoint, all_ranks(endpoint.world()), 0, timeout) {}

ProcessGroup::ProcessGroup(Endpoint& endpoint,
                           std::span<const Rank> processes,
                           int number,
                           std::chrono::milliseconds timeout)
    : endpoint_(&endpoint),
      processes_(processes.begin(), processes.end()),
      group_(number),
      timeout_(timeout) {
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
  return std::chrono::steady_clock::now() + timeout_;
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

/// Large values in blocks, one for each process, and blocks in pieces: while one piece is added the
/// next is on its way, and so is the sum of the one before.
template <class T>
class ProcessGroup::Blocks {
 public:
  Blocks(ProcessGroup& group, std::span<T> values, Label label)
      : group_(group), values_(values), pieces_(pieces_of(block(group.size() - 1))) {
    for (std::size_t i = 0; i < pieces_; ++i) {
      parts_.push_back(group.next_tag(label));
      sums_.push_back(group.next_tag(label));
    }
  }

  /// Every block becomes the sum at its owner, and with `gives_sums` everywhere. Few pieces are
  /// under way at a time: what carries them is soon free again, and still near.
  void reduce(ReduceOp op, bool gives_sums) {
    constexpr std::size_t kAhead = 2;  // pieces sent before one is added, and so on
    for (std::size_t i = 0; i < pieces_ + 2 * kAhead; ++i) {
      if (i < pieces_) send_parts(i);
      if (i >= kAhead && i - kAhead < pieces_) {
        join_own(i - kAhead, op);
        if (gives_sums) send_sum(i - kAhead);
      }
      if (gives_sums && i >= 2 * kAhead) receive_sums(i - 2 * kAhead);
    }
  }

 private:
  void send_parts(std::size_t i) const {
    each_other([&](int place, Rank process) {
      group_.endpoint_->send(
          process, parts_[i], TensorList(copy_of(std::span<const T>(piece(place, i)))));
    });
  }

  /// In rank order.
  void join_own(std::size_t i, ReduceOp op) const {
    const std::span<T> own = piece(group_.rank_, i);
    std::vector<TensorList> messages(static_cast<std::size_t>(group_.size()));
    std::vector<std::span<const T>> parts(messages.size(), std::span<const T>(own));
    each_other([&](int place, Rank process) {
      TensorList& message = messages[static_cast<std::size_t>(place)];
      message = group_.endpoint_->receive(process, parts_[i], group_.deadline());
      parts[static_cast<std::size_t>(place)] = values_of<T>(message, own.size(), process);
    });
    join_in_order<T>(parts, own, op);
  }

  void send_sum(std::size_t i) const {
    each_other([&](int, Rank process) {
      group_.endpoint_->send(
          process, sums_[i], TensorList(copy_of(std::span<const T>(piece(group_.rank_, i)))));
    });
  }

  void receive_sums(std::size_t i) const {
    each_other([&](int place, Rank process) {
      const TensorList message = group_.endpoint_->receive(process, sums_[i], group_.deadline());
      const std::span<T> into = piece(place, i);
      std::ranges::copy(values_of<T>(message, into.size(), process), into.begin());
    });
  }

  [[nodiscard]] std::span<T> block(int place) const {
    const auto count = static_cast<std::size_t>(group_.size());
    const auto i = static_cast<std::size_t>(place);
    // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): this rank is a member
    const std::size_t first = values_.size() * i / count;
    return values_.subspan(first, values_.size() * (i + 1) / count - first);
  }

  /// The last block is the longest.
  [[nodiscard]] static std::size_t pieces_of(std::span<const T> block) {
    return std::max<std::size_t>(1, block.size_bytes() / kPieceBytes);
  }

  [[nodiscard]] std::span<T> piece(int place, std::size_t i) const {
    const std::span<T> whole = block(place);
    const std::size_t first = whole.size() * i / pieces_;
    return whole.subspan(first, whole.size() * (i + 1) / pieces_ - first);
  }

  template <class Use>
  void each_other(const Use& use) const {
    for (int place = 0; place < group_.size(); ++place)
      if (place != group_.rank_) use(place, group_.processes_[static_cast<std::size_t>(place)]);
  }

  ProcessGroup& group_;
  std::span<T> values_;
  std::size_t pieces_;
  std::vector<MessageTag> parts_, sums_;
};

template <class T>
void ProcessGroup::reduce_by_blocks(std::span<T> values, ReduceOp op, Label label) {
  Blocks<T>(*this, values, label).reduce(op, true);
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

void ProcessGroup::reduce_scatter(Tensor& tensor, ReduceOp op, Label label) {
  const auto scatter = [&](auto values) {
    if (size() == 1) return;
    Blocks(*this, values, label).reduce(op, false);
  };
  if (tensor.dtype() == DType::F32) return scatter(tensor.as<float>());
  if (tensor.dtype() == DType::F64) return scatter(tensor.as<double>());
  throw InvalidArgument(std::string("reduce_scatter takes f32 or f64, not ") +
                        name_of(tensor.dtype()));
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
  Tensor bytes = Tensor::uninitialised(DType::U8, {static_cast<std::int64_t>(mine.size())});
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
