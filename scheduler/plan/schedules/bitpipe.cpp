// BitPipe: Chimera's two directions, each of them a V. A block of p micro-batches is a pattern of
// forwards and its mirror of backwards; further blocks run in the backwards of the one before.
#include <array>

#include "plan/model/work.hpp"
#include "plan/schedules/families.hpp"

namespace millrace::generators {

namespace {

/// A pass of a block: of the replica whose first stage is on this half of the ranks or of the
/// other, over the first or the second half of its V.
struct Way {
  bool is_own;
  bool is_second;
};

constexpr Way kOwn1{true, false}, kOwn2{true, true}, kOther1{false, false}, kOther2{false, true};

/// Writes one rank's list.
class BitPipeRank {
 public:
  BitPipeRank(int ranks, int rank, int micro_batches)
      : ranks_(ranks),
        rank_(rank),
        micro_batches_(micro_batches),
        is_upper_(rank < ranks / 2),
        near_(is_upper_ ? ranks / 2 - rank : rank - ranks / 2 + 1) {
    for (const Op op : {Op::Forward, Op::Backward})
      for (int first = 0; first < micro_batches; first += ranks) add_block(op, first);
  }

  std::vector<Action> write() {
    const int warm = 3 * ranks_ / 2 + std::min(rank_, ranks_ - 1 - rank_);
    const int left = 2 * ranks_ - warm;
    forwards(warm);
    for (int block = 1; block < micro_batches_ / ranks_; ++block) {
      in_turn(left);
      backwards(warm - left + 1);
      in_turn(left - 1);
      forwards(warm - left + 1);
    }
    in_turn(left);
    backwards(warm);
    return std::move(actions_);
  }

 private:
  /// The passes of the micro-batches from `first` on: a backward has the second half of the V where
  /// the forward has the first.
  void add_block(Op op, int first) {
    const int half = ranks_ / 2;
    std::array<int, 4> counts{};
    const auto add = [&](int times, std::initializer_list<Way> ways) {
      for (int i = 0; i < times; ++i)
        for (const Way& way : ways) {
          const int replica = way.is_own == is_upper_ ? 0 : 1;
          const bool is_second = way.is_second == (op == Op::Forward);
          const int at = replica == 0 ? rank_ : ranks_ - 1 - rank_;
          const std::size_t of = (way.is_own ? 0U : 2U) + (way.is_second ? 1U : 0U);
          queue(op).push_back({.op = op,
                               .replica_number = static_cast<std::uint8_t>(replica),
                               .stage = Stage{is_second ? 2 * ranks_ - 1 - at : at},
                               .micro_batch = MicroBatch{first + replica * half + counts[of]++},
                               .slice = {}});
        }
    };
    add(near_, {kOwn1});
    add(half - near_, {kOther1, kOwn1});
    add(near_, {kOther1, kOther2});
    add(half - near_, {kOwn2, kOther2});
    add(near_, {kOwn2});
  }

  std::vector<Action>& queue(Op op) { return op == Op::Forward ? forwards_ : backwards_; }

  void forwards(int count) {
    while (count-- > 0) actions_.push_back(forwards_[next_forward_++]);
  }
  void backwards(int count) {
    while (count-- > 0) actions_.push_back(backwards_[next_backward_++]);
  }
  void in_turn(int count) {
    while (count-- > 0) {
      forwards(1);
      backwards(1);
    }
  }

  int ranks_, rank_, micro_batches_;
  bool is_upper_;  // in the half that holds the first stages of replica 0
  int near_;       // ranks from the middle, from 1
  std::size_t next_forward_ = 0, next_backward_ = 0;
  std::vector<Action> forwards_, backwards_, actions_;
};

}  // namespace

Program bitpipe(const Request& options) {
  require_even_ranks(options);
  require_full_rounds("bitpipe", options);
  const int ranks = options.ranks;
  std::vector<std::vector<Rank>> placement(2);
  for (int stage = 0; stage < 2 * ranks; ++stage) {
    const int down = std::min(stage, 2 * ranks - 1 - stage);
    placement[0].push_back(Rank{down});
    placement[1].push_back(Rank{ranks - 1 - down});
  }
  Program program{.shape = {.ranks = ranks,
                            .micro_batches = options.micro_batches,
                            .placement = Placement(std::move(placement))}};
  for (int m = 0; m < options.micro_batches; ++m)
    program.shape.replica_of.emplace_back(m % ranks < ranks / 2 ? 0 : 1);
  plan::Work work(options.stop);
  for (int rank = 0; rank < ranks; ++rank) {
    program.ranks.push_back(BitPipeRank(ranks, rank, options.micro_batches).write());
    work.spend(program.ranks.back().size());
  }
  return program;
}

}  // namespace millrace::generators
