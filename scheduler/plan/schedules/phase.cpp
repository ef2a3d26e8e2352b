// The phase program: queues over groups, and the loop that merges them into one list per rank.
#include <algorithm>
#include <string>

#include "plan/model/work.hpp"
#include "plan/schedules/families.hpp"

namespace millrace::generators {

namespace {

/// What a queue entry needs besides its op.
struct Position {
  std::int32_t chunk;
  std::int32_t micro_batch;
  std::int32_t slice;
};

struct Queues {
  std::vector<Position> forward;
  std::vector<Position> backward;
};

/// Per group: chunks ascending, micro-batches ascending, slices ascending; backward the chunks and
/// the slices descend, and with `lifo` the micro-batches too.
Queues loop_queues(const std::vector<int>& groups, int chunks, int slices, bool lifo) {
  Queues queues;
  int first = 0;
  for (const int size : groups) {
    for (int chunk = 0; chunk < chunks; ++chunk)
      for (int index = 0; index < size; ++index)
        for (int slice = 0; slice < slices; ++slice) {
          queues.forward.push_back({chunk, first + index, slice});
          queues.backward.push_back(
              {chunks - 1 - chunk, first + (lifo ? size - 1 - index : index), slices - 1 - slice});
        }
    first += size;
  }
  return queues;
}

/// Writes one rank's list.
class RankWriter {
 public:
  RankWriter(const Queues& queues, int ranks, int rank)
      : queues_(queues), ranks_(ranks), rank_(rank) {}

  /// 1 warm-up forwards, 2 forward - backward (- weight), 3 the weights that are left.
  std::vector<Action> write(std::size_t warm, int lag, bool pairs) {
    const std::size_t total = queues_.forward.size(), owed = queues_.backward.size();
    const bool split = lag != kFused;
    actions_.reserve(total + owed * (split ? 2 : 1));

    while (forwards_ < std::min(warm, total)) forward();
    while (backwards_ < owed) {
      if (forwards_ < total) forward(pairs);
      backward(split ? Op::BackwardInput : Op::Backward);
      if (split && backwards_ - weights_ > static_cast<std::size_t>(lag)) weight();
    }
    while (split && weights_ < owed) weight();
    return std::move(actions_);
  }

 private:
  void forward(bool with_next = false) {
    add(Op::Forward, queues_.forward[forwards_++]);
    actions_.back().with_next = with_next;
  }
  void backward(Op op) { add(op, queues_.backward[backwards_++]); }
  void weight() { add(Op::BackwardWeight, queues_.backward[weights_++]); }

  void add(Op op, const Position& at) {
    actions_.push_back({.op = op,
                        .stage = Stage{at.chunk * ranks_ + rank_},
                        .micro_batch = MicroBatch{at.micro_batch},
                        .slice = Slice{at.slice}});
  }

  const Queues& queues_;
  int ranks_;
  int rank_;
  std::size_t forwards_ = 0, backwards_ = 0, weights_ = 0;
  std::vector<Action> actions_;
};

/// m cut into groups of g; the last one takes what is left.
std::vector<int> uniform(int micro_batches, int group) {
  std::vector<int> sizes(static_cast<std::size_t>(micro_batches / group), group);
  if (micro_batches % group != 0) sizes.push_back(micro_batches % group);
  return sizes;
}

/// m cut into groups of g; what is left joins the first group when it is shorter than `shortest`: a
/// short last group would have nothing to run while its first micro-batch goes through the ranks,
/// and the warm-up is counted from the first group.
std::vector<int> uniform_joined(int micro_batches, int group, int shortest) {
  std::vector<int> sizes = uniform(micro_batches, group);
  if (sizes.size() < 2 || sizes.back() >= shortest) return sizes;
  const int rest = sizes.back();
  sizes.pop_back();
  sizes.front() += rest;
  return sizes;
}

/// m cut into `cycles` groups whose sizes differ by at most one, the larger first.
std::vector<int> balanced(int micro_batches, int cycles) {
  std::vector<int> sizes(static_cast<std::size_t>(cycles), micro_batches / cycles);
  for (int extra = 0; extra < micro_batches % cycles; ++extra)
    ++sizes[static_cast<std::size_t>(extra)];
  return sizes;
}

bool fits_rounds(int group, int ranks, int micro_batches) {
  if (micro_batches < ranks) return group == micro_batches;
  const int rest = micro_batches % group;
  return group >= ranks && group <= micro_batches && (rest == 0 || rest >= ranks);
}

int group_of_rounds(const Request& options) {
  const int ranks = options.ranks, micro_batches = options.micro_batches;
  int smallest = std::min(ranks, micro_batches);
  while (!fits_rounds(smallest, ranks, micro_batches)) ++smallest;
  const int group = options.group.value_or(smallest);
  require(fits_rounds(group, ranks, micro_batches),
          given("group", group, options) + " and " + named("micro_batches") + " " +
              std::to_string(micro_batches) +
              "; a group of at least p (m < p: of m) works when the last one is full or has at "
              "least p micro-batches: the smallest is " +
              std::to_string(smallest));
  return group;
}

/// Raised from ceil(p/2) until a group's work covers the flight of a micro-batch through the ranks,
/// then, where one exists up to p, to a divisor of m.
int group_of_half(const Request& options) {
  const int ranks = options.ranks, half = (ranks + 1) / 2;
  if (options.group) {
    require(*options.group >= half && *options.group <= ranks,
            given("group", *options.group, options) + "; groups from " + std::to_string(half) +
                " (p/2 rounded up) to " + std::to_string(ranks) + " (p) work");
    return *options.group;
  }
  const double work = options.mean.forward + options.mean.input + options.mean.weight;
  const double flight = ranks * std::max(options.mean.forward, options.mean.input);
  int group = half;
  while (group < ranks && group * work < flight) ++group;
  for (int divisor = group; divisor <= ranks; ++divisor)
    if (options.micro_batches % divisor == 0) return divisor;
  return group;
}

/// m / (p / q) cycles. With `full`, a cycle must have p slices, one for every rank.
std::vector<int> short_cycles(const Request& options, bool full) {
  const int ranks = options.ranks, micro_batches = options.micro_batches;
  const int slices = options.slices.value_or(1);
  require(slices <= ranks,
          given("slices", slices, options) + "; this schedule works with at most p slices");
  const int least = (ranks + slices - 1) / slices;
  require(micro_batches >= least,
          given("micro_batches", micro_batches, options) + " and " + named("slices") + " " +
              std::to_string(slices) + "; this schedule works from m q = p: m at least " +
              std::to_string(least));
  const int cycles = micro_batches / (ranks / slices);
  require(!full || micro_batches / cycles * slices >= ranks,
          given("slices", slices, options) + " and " + named("micro_batches") + " " +
              std::to_string(micro_batches) +
              "; this schedule works when a cycle of m / (p / q) has p slices, as with a q that "
              "divides p");
  return balanced(micro_batches, cycles);
}

/// A group for each micro-batch; its slices alone fill the ranks.
std::vector<int> groups_of_one(const Request& options) {
  const int slices = options.slices.value_or(1);
  require(slices >= options.ranks,
          given("slices", slices, options) + "; this schedule works from q = p: at least " +
              std::to_string(options.ranks));
  return uniform(options.micro_batches, 1);
}

/// Group sizes of m micro-batches under `grouping`; they sum to m. Throws InvalidArgument for a
/// group with which the schedule would stall.
std::vector<int> group_sizes(Grouping grouping, const Request& options) {
  const int micro_batches = options.micro_batches;
  switch (grouping) {
    case Grouping::Whole:
      break;
    case Grouping::Rounds:
      return uniform(micro_batches, group_of_rounds(options));
    case Grouping::Small:
      return uniform_joined(
          micro_batches, std::min(group_of_half(options), micro_batches), (options.ranks + 1) / 2);
    case Grouping::CyclesOfP:
      return balanced(micro_batches, std::max(1, micro_batches / options.ranks));
    case Grouping::CyclesOfPq:
      return short_cycles(options, false);
    case Grouping::FullCycles:
      return short_cycles(options, true);
    case Grouping::One:
      return groups_of_one(options);
  }
  return {micro_batches};
}

}  // namespace

Program phase_program(const PhaseRow& row, const Request& options) {
  const int ranks = options.ranks;
  const int chunks = options.chunks.value_or(1), slices = options.slices.value_or(1);
  const std::vector<int> groups = group_sizes(row.grouping, options);
  Queues queues = loop_queues(groups, chunks, slices, options.order == BackwardOrder::Lifo);
  if (row.forward_only) queues.backward.clear();

  Program program{.shape = {.ranks = ranks,
                            .micro_batches = options.micro_batches,
                            .slices = slices,
                            .placement = Placement::loop(ranks, chunks),
                            .replica_of = {},
                            .forward_only = row.forward_only},
                  .ranks = {},
                  .name = {}};
  plan::Work work(options.stop);
  for (int rank = 0; rank < ranks; ++rank) {
    const int after = ranks - 1 - rank, more = std::min(after, row.more);
    const int ahead = row.slope * after + more + (chunks - 1) * groups.front() * slices;
    const int first = ahead + slices - 1 + (row.pairs ? 1 : 0);
    const std::size_t warm =
        row.forwards_first ? queues.forward.size() : static_cast<std::size_t>(first);
    const int lag = row.lag_per_rank == kFused ? kFused : row.lag_per_rank * rank + row.more - more;
    program.ranks.push_back(RankWriter(queues, ranks, rank).write(warm, lag, row.pairs));
    work.spend(program.ranks.back().size());
  }
  return program;
}

}  // namespace millrace::generators
