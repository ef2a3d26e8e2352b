// V-Half and V-Min (Qi et al. 2024, "Pipeline Parallelism with Controllable Memory"): one
// micro-batch is placed by formula, repeated every six slots, and its warm-up and cool-down are
// then pulled forward slot by slot as long as no rank holds more than the repeated pattern did.
#include "plan/schedules/v_greedy.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "plan/search/work.hpp"

namespace millrace::generators {

namespace {

/// Ops of a micro-batch on a rank, in the order of its data; then the weight halves, which have one
/// common count per rank.
enum Kind : std::uint8_t { kF0, kF1, kB1, kB0, kWeight };

constexpr int kIdle = -1;
constexpr int kPeriod = 6;  // unit ops that a rank owes per micro-batch: F, I, W of two chunks

/// Slots of micro-batch 0 on one rank.
using Block = std::array<int, 4>;

/// What a rank holds before a slot.
struct Held {
  int live = 0;     // chunk activations
  int pending = 0;  // backwards whose weight half has not run

  friend bool operator==(const Held&, const Held&) = default;
};

class Board {
 public:
  Board(int ranks, int micro_batches, const std::vector<Block>& blocks)
      : ranks_(ranks), micro_batches_(micro_batches), cells_(static_cast<std::size_t>(ranks)) {
    for (auto& slots : slots_) slots.resize(static_cast<std::size_t>(ranks * 2 * micro_batches));
    for (int rank = 0; rank < ranks; ++rank)
      for (int kind = kF0; kind <= kB0; ++kind)
        for (int m = 0; m < micro_batches; ++m)
          put(rank,
              blocks[static_cast<std::size_t>(rank)][static_cast<std::size_t>(kind)] + kPeriod * m,
              code(kind, m));
  }

  /// Gives idle slots to owed weight halves, the rest to slots after the end.
  void add_weights() {
    for (int rank = 0; rank < ranks_; ++rank) {
      int pending = 0, next = 0;
      for (int slot = 0; slot < length(rank) || pending > 0; ++slot) {
        const int cell = at(rank, slot);
        if (is_backward(cell)) ++pending;
        if (cell != kIdle || pending == 0) continue;
        put(rank, slot, code(kWeight, next++));
        --pending;
      }
    }
    has_weights_ = true;
  }

  void drop_weights() {
    for (auto& row : cells_)
      for (int& cell : row)
        if (kind_of(cell) == kWeight) cell = kIdle;
    has_weights_ = false;
  }

  /// Moves the ops of the warm-up (only when weights are placed) and of the cool-down to the first
  /// slot where they may run, in the order of their present slots.
  void reorder(plan::Work& work) {
    prepare();
    enum { kWarmUp, kSteady, kCoolDown } phase = kWarmUp;
    const int last_forward = code(kF0, micro_batches_ - 1);
    for (int slot = 0; slot < longest(); ++slot) {
      work.spend(cells_.size());
      for (int rank = 0; rank < ranks_; ++rank) {
        const int cell = at(rank, slot);
        if (cell == kIdle) continue;
        if (phase == kWarmUp && rank == 0 && kind_of(cell) == kB0) phase = kSteady;
        if (phase != kSteady && (phase == kCoolDown || has_weights_)) pull(rank, slot, cell);
        if (phase == kSteady && cell == last_forward) phase = kCoolDown;
      }
    }
  }

  /// Starts every op as early as its rank's order and its data allow, one slot per op.
  void squeeze() {
    std::vector<std::vector<int>> before(cells_.size());
    before.swap(cells_);
    std::vector<int> clock(cells_.size());
    std::size_t longest_row = 0;
    for (const auto& row : before) longest_row = std::max(longest_row, row.size());
    for (std::size_t slot = 0; slot < longest_row; ++slot)
      for (int rank = 0; rank < ranks_; ++rank) {
        const auto& row = before[static_cast<std::size_t>(rank)];
        if (slot >= row.size() || row[slot] == kIdle) continue;
        int& next = clock[static_cast<std::size_t>(rank)];
        next = std::max(next, after_data(rank, row[slot]));
        put(rank, next++, row[slot]);
      }
  }

  /// The rank's list; an idle slot takes an owed weight half, chunk 1 before chunk 0.
  [[nodiscard]] std::vector<Action> list(int rank) const {
    std::vector<Action> actions;
    actions.reserve(6 * static_cast<std::size_t>(micro_batches_));
    std::array<int, 2> owed{}, next{};
    for (int slot = 0; slot < length(rank) || owed[0] + owed[1] > 0; ++slot) {
      const int cell = at(rank, slot);
      if (cell == kIdle) {
        if (owed[0] + owed[1] == 0) continue;
        const std::size_t chunk = owed[1] > 0 ? 1 : 0;
        --owed[chunk];
        actions.push_back(action(Op::BackwardWeight, rank, chunk, next[chunk]++));
        continue;
      }
      const int kind = kind_of(cell);
      const std::size_t chunk = kind == kF1 || kind == kB1 ? 1 : 0;
      if (is_backward(cell)) ++owed[chunk];
      actions.push_back(
          action(is_backward(cell) ? Op::BackwardInput : Op::Forward, rank, chunk, index_of(cell)));
    }
    return actions;
  }

 private:
  // A cell is kind x 2m + index, or idle.
  [[nodiscard]] int code(int kind, int index) const { return kind * 2 * micro_batches_ + index; }
  [[nodiscard]] int kind_of(int cell) const {
    return cell == kIdle ? kIdle : cell / (2 * micro_batches_);
  }
  [[nodiscard]] int index_of(int cell) const { return cell % (2 * micro_batches_); }
  [[nodiscard]] bool is_backward(int cell) const {
    return kind_of(cell) == kB1 || kind_of(cell) == kB0;
  }
  [[nodiscard]] int& slot_of(int kind, int rank, int index) {
    return slots_[static_cast<std::size_t>(kind)]
                 [static_cast<std::size_t>(rank * 2 * micro_batches_ + index)];
  }
  [[nodiscard]] int length(int rank) const {
    return static_cast<int>(cells_[static_cast<std::size_t>(rank)].size());
  }
  [[nodiscard]] int longest() const {
    int slots = 0;
    for (int rank = 0; rank < ranks_; ++rank) slots = std::max(slots, length(rank));
    return slots;
  }
  [[nodiscard]] int at(int rank, int slot) const {
    return slot < length(rank)
               ? cells_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(slot)]
               : kIdle;
  }
  void put(int rank, int slot, int cell) {
    auto& row = cells_[static_cast<std::size_t>(rank)];
    if (slot >= length(rank)) row.resize(static_cast<std::size_t>(slot) + 1, kIdle);
    row[static_cast<std::size_t>(slot)] = cell;
    slot_of(kind_of(cell), rank, index_of(cell)) = slot;
  }
  [[nodiscard]] Action action(Op op, int rank, std::size_t chunk, int micro_batch) const {
    return {.op = op,
            .stage = Stage{chunk == 0 ? rank : 2 * ranks_ - 1 - rank},
            .micro_batch = MicroBatch{micro_batch},
            .slice = {}};
  }

  /// First slot after the op's data: the same op on the rank that feeds it, the previous op of the
  /// micro-batch here. Weight halves follow their rank's order.
  [[nodiscard]] int after_data(int rank, int cell) {
    const int kind = kind_of(cell), index = index_of(cell);
    if (kind == kWeight) return 0;
    int slot = 0;
    const int feeder = kind == kF0 || kind == kB1 ? rank - 1 : rank + 1;
    if (feeder >= 0 && feeder < ranks_) slot = slot_of(kind, feeder, index) + 1;
    if (kind != kF0) slot = std::max(slot, slot_of(kind - 1, rank, index) + 1);
    return slot;
  }

  /// First slot to which reorder may move the op.
  [[nodiscard]] int earliest(int rank, int cell) {
    const int kind = kind_of(cell), index = index_of(cell);
    int slot = after_data(rank, cell);
    if (kind == kWeight)
      slot = backwards_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(index)] + 1;
    if (index > 0) slot = std::max(slot, slot_of(kind, rank, index - 1) + 1);
    return slot;
  }

  [[nodiscard]] Held after(Held held, int cell) const {
    const int kind = kind_of(cell);
    if (kind == kF0 || kind == kF1) ++held.live;
    if (is_backward(cell)) ++held.pending;
    if (kind == kWeight || (!has_weights_ && kind == kIdle && held.pending > 0)) {
      --held.live;
      --held.pending;
    }
    return held;
  }

  /// What every rank holds before every slot, the most that any holds, and the backwards' slots.
  void prepare() {
    cap_ = 0;
    held_.assign(cells_.size(), {});
    backwards_.assign(cells_.size(), {});
    for (std::size_t rank = 0; rank < cells_.size(); ++rank) {
      Held now;
      for (std::size_t slot = 0; slot < cells_[rank].size(); ++slot) {
        held_[rank].push_back(now);
        now = after(now, cells_[rank][slot]);
        cap_ = std::max(cap_, now.live);
        if (is_backward(cells_[rank][slot])) backwards_[rank].push_back(static_cast<int>(slot));
      }
      held_[rank].push_back(now);
    }
  }

  /// Moves one op to the first free slot that keeps the rank's peak within the cap.
  void pull(int rank, int slot, int cell) {
    for (int target = earliest(rank, cell); target < slot; ++target) {
      if (at(rank, target) != kIdle || !fits(rank, slot, target, cell)) continue;
      cells_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(slot)] = kIdle;
      put(rank, target, cell);
      walk(rank, slot, target, cell, [&](int at_slot, Held held) {
        held_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(at_slot)] = held;
        return true;
      });
      if (is_backward(cell)) move_backward(rank, slot, target);
      return;
    }
  }

  bool fits(int rank, int slot, int target, int cell) const {
    return walk(rank, slot, target, cell, [&](int, const Held& held) { return held.live <= cap_; });
  }

  /// Replays the rank with the op at `target` instead of `slot` until nothing differs from what is
  /// recorded; `visit(s, held)` sees what is held before slot s and may stop the walk with false.
  template <class Visit>
  bool walk(int rank, int slot, int target, int cell, const Visit& visit) const {
    const auto& recorded = held_[static_cast<std::size_t>(rank)];
    Held now = after(recorded[static_cast<std::size_t>(target)], cell);
    for (int next = target + 1; next <= length(rank); ++next) {
      if (next > slot && now == recorded[static_cast<std::size_t>(next)]) return true;
      if (!visit(next, now)) return false;
      now = after(now, next == slot ? kIdle : at(rank, next));
    }
    return true;
  }

  void move_backward(int rank, int from, int to) {
    auto& sorted = backwards_[static_cast<std::size_t>(rank)];
    const auto old = std::lower_bound(sorted.begin(), sorted.end(), from);
    *old = to;
    std::rotate(std::lower_bound(sorted.begin(), old, to), old, old + 1);
  }

  int ranks_, micro_batches_;
  bool has_weights_ = false;
  std::vector<std::vector<int>> cells_;      // rank, slot
  std::array<std::vector<int>, 5> slots_;    // kind, rank, index
  int cap_ = 0;                              // chunk activations
  std::vector<std::vector<Held>> held_;      // rank, before slot
  std::vector<std::vector<int>> backwards_;  // rank, slots ascending
};

Program from_blocks(const ScheduleOptions& options, const std::vector<Block>& blocks) {
  plan::Work work(options.stop);
  Board board(options.ranks, options.micro_batches, blocks);
  board.add_weights();
  board.reorder(work);
  board.squeeze();
  board.drop_weights();

  board.reorder(work);
  board.add_weights();
  board.squeeze();
  board.drop_weights();

  Program program{.shape = {.ranks = options.ranks,
                            .micro_batches = options.micro_batches,
                            .placement = Placement::vee(options.ranks)}};
  for (int rank = 0; rank < options.ranks; ++rank) program.ranks.push_back(board.list(rank));
  return program;
}

}  // namespace

// The gaps keep the four slots of a rank apart modulo the period.

Program v_half(const ScheduleOptions& options) {
  const int p = options.ranks, gap = p % 2 == 0 ? 3 : 0;
  std::vector<Block> blocks;
  for (int r = 0; r < p; ++r)
    blocks.push_back({2 * r, 3 * p - 2 - r, 3 * p + gap + 2 * r - 1, 6 * p + gap - 2 - r});
  return from_blocks(options, blocks);
}

Program v_min(const ScheduleOptions& options) {
  const int p = options.ranks, gap = p % 3 == 0 ? 2 : 0;
  std::vector<Block> blocks;
  for (int r = 0; r < p; ++r)
    blocks.push_back({r, 2 * p - 1 - r, 2 * p + gap + r, 4 * p + gap - 1 - r});
  return from_blocks(options, blocks);
}

}  // namespace millrace::generators
