// Random programs for differential tests: bytes decide the shape, the order of a complete set of
// actions on every rank, whether messages are added, and a few mutations. Also a naive executor
// with bounded channels, the oracle of the deadlock proofs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/program.hpp"

namespace millrace::testing_plan {

/// Reads small numbers from bytes; zeros when they run out.
class Bytes {
 public:
  explicit Bytes(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  std::size_t below(std::size_t bound) {
    const std::size_t value = next_ < bytes_.size() ? bytes_[next_++] : 0;
    return value % bound;
  }

 private:
  std::span<const std::uint8_t> bytes_;
  std::size_t next_ = 0;
};

/// Inserts every action of a stage at a place after the last one it must follow on its rank,
/// usually; sometimes anywhere.
inline Program random_program(std::span<const std::uint8_t> data) {
  Bytes bytes(data);
  const int ranks = 1 + static_cast<int>(bytes.below(4));
  const int micro_batches = 1 + static_cast<int>(bytes.below(4));
  const bool vee = bytes.below(3) == 0;
  Program program{{ranks,
                   micro_batches,
                   1 + static_cast<int>(bytes.below(2)),
                   vee ? Placement::vee(ranks) : Placement::straight(ranks),
                   {},
                   false},
                  {},
                  "random"};
  program.ranks.resize(static_cast<std::size_t>(ranks));
  const bool split = bytes.below(2) == 0;
  const std::size_t messages = bytes.below(3);
  for (int s = 0; s < program.shape.stages(); ++s)
    for (int i = 0; i < micro_batches; ++i)
      for (int k = 0; k < program.shape.slices; ++k) {
        auto& list = program.ranks[program.shape.rank(Replica{0}, Stage{s}).index()];
        std::size_t after = 0;
        for (const Op op :
             {Op::Forward, split ? Op::BackwardInput : Op::Backward, Op::BackwardWeight}) {
          if (op == Op::BackwardWeight && !split) continue;
          if (bytes.below(16) == 15) after = 0;
          after += bytes.below(list.size() - std::min(after, list.size()) + 1);
          after = std::min(after, list.size());
          list.insert(list.begin() + static_cast<std::ptrdiff_t>(after),
                      Action{op, false, 0, 0, Stage{s}, MicroBatch{i}, Slice{k}});
          ++after;
        }
      }
  if (messages > 0) program = insert_messages_before_use(program);
  for (std::size_t swaps = messages == 2 ? bytes.below(6) : 0; swaps > 0; --swaps) {
    auto& list = program.ranks[bytes.below(program.ranks.size())];
    const std::size_t from = bytes.below(list.size());
    std::swap(list[from], list[bytes.below(list.size())]);
  }
  return program;
}

/// Whether a program whose structure and order are right ends when every channel holds `capacity`
/// messages; 0 is a rendezvous: a send and its receive happen together. Tries ranks in turn.
inline bool ends_with_capacity(const Program& program, std::size_t capacity) {
  using Key = std::tuple<Op, Stage, MicroBatch, Slice>;
  std::vector<std::size_t> next(program.ranks.size(), 0);
  std::set<Key> sent;
  std::map<std::tuple<int, int, bool>, std::size_t> room_used;
  const auto head = [&](std::size_t r) {
    return next[r] < program.ranks[r].size() ? &program.ranks[r][next[r]] : nullptr;
  };
  const auto partner = [&](Action action) {
    const bool forward = action.op == Op::SendForward || action.op == Op::RecvForward;
    const bool up = action.op == Op::SendForward || action.op == Op::RecvBackward;
    action.op = is_send(action.op) ? (forward ? Op::RecvForward : Op::RecvBackward)
                                   : (forward ? Op::SendForward : Op::SendBackward);
    action.stage = Stage{action.stage.value + (up ? 1 : -1)};
    return action;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t r = 0; r < next.size(); ++r) {
      const Action* action = head(r);
      if (action == nullptr) continue;
      if (is_compute(action->op)) {
        ++next[r];
        moved = true;
        continue;
      }
      const Action other = partner(*action);
      const auto peer = program.shape.rank(other.replica(), other.stage).index();
      const bool forward = action->op == Op::SendForward || action->op == Op::RecvForward;
      if (is_send(action->op)) {
        const std::tuple channel{static_cast<int>(r), static_cast<int>(peer), forward};
        if (capacity == 0) {
          if (head(peer) == nullptr || *head(peer) != other) continue;
          ++next[peer];
        } else {
          if (room_used[channel] == capacity) continue;
          ++room_used[channel];
          sent.insert({action->op, action->stage, action->micro_batch, action->slice});
        }
        ++next[r];
        moved = true;
      } else if (sent.erase({other.op, other.stage, other.micro_batch, other.slice}) > 0) {
        --room_used[{static_cast<int>(peer), static_cast<int>(r), forward}];
        ++next[r];
        moved = true;
      }
    }
  }
  for (std::size_t r = 0; r < next.size(); ++r)
    if (next[r] != program.ranks[r].size()) return false;
  return true;
}

}  // namespace millrace::testing_plan
