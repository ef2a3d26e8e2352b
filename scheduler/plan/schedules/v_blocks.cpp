// Building blocks of the V pipelines: enumerated, repeated, and the three schedules that are one
// block each, its columns a formula.
#include <algorithm>
#include <optional>
#include <utility>

#include "plan/schedules/families.hpp"
#include "plan/schedules/timetable.hpp"

namespace millrace::generators {

namespace {

/// Residues of F, f, B and b of one rank.
using Pattern = std::array<int, 4>;

/// First column at or after `cursor` with this residue.
int next_column(int cursor, int residue) {
  return cursor + (residue - cursor % kPeriod + kPeriod) % kPeriod;
}

/// The residues of one rank with those of W and w: the first free ones at or after B and b. None
/// when two passes meet.
std::optional<std::array<int, kPeriod>> with_weights(const Pattern& passes) {
  std::array<int, kPeriod> residues{};
  std::array<bool, kPeriod> taken{};
  for (std::size_t pass = 0; pass < passes.size(); ++pass)
    if (std::exchange(taken[static_cast<std::size_t>(residues[pass] = passes[pass])], true))
      return std::nullopt;
  for (const auto& [input, weight] : {std::pair{kB, kW}, {kb, kw}}) {
    int residue = residues[input];
    while (taken[static_cast<std::size_t>(residue)]) residue = (residue + 1) % kPeriod;
    taken[static_cast<std::size_t>(residue)] = true;
    residues[weight] = residue;
  }
  return residues;
}

/// Turns residues into columns: the passes follow one another down and up the V, each at the first
/// column from a running cursor that has its residue.
void unroll(VBlock& block) {
  int cursor = kPeriod;
  for (const Symbol symbol : {kF, kf, kB, kb})
    for (std::size_t step = 0; step < block.size(); ++step) {
      auto& columns = block[symbol % 2 == 0 ? step : block.size() - 1 - step];
      columns[symbol] = next_column(cursor, columns[symbol]);
      cursor = columns[symbol] + 1;
      if (is_forward(symbol)) continue;
      int& weight = columns[symbol == kB ? kW : kw];
      weight = next_column(cursor, weight);
    }
}

/// None when two symbols of a rank meet.
std::optional<VBlock> shifted_block(int ranks, Pattern now, int near, int far, int near_ranks) {
  VBlock block;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto residues = with_weights(now);
    if (!residues) return std::nullopt;
    block.push_back(*residues);
    const int delta = rank < near_ranks ? near : far;
    for (std::size_t pass = 0; pass < now.size(); ++pass)
      now[pass] = (now[pass] + (pass % 2 == 0 ? delta : kPeriod - 1)) % kPeriod;
  }
  unroll(block);
  return block;
}

/// All ways to shift one pattern; false where no more patterns are to be tried.
bool visit_shifts(int ranks,
                  const Pattern& first,
                  const std::function<Verdict(const VBlock&)>& visit) {
  for (int near = kPeriod - 1; near >= 1; --near)
    for (int far = near; far >= 1; --far)
      // With equal shifts every split between near and far is the same block.
      for (int near_ranks = 1; near_ranks <= (near == far ? 1 : ranks - 1); ++near_ranks) {
        const auto block = shifted_block(ranks, first, near, far, near_ranks);
        if (!block) continue;
        const Verdict verdict = visit(*block);
        if (verdict == Verdict::Best) return false;
        if (verdict == Verdict::TooMuchMemory) break;
      }
  return true;
}

/// Repeats a block without weight halves: gives them the cells between, pulls the warm-up and the
/// cool-down forward as long as no rank holds more than the repeated pattern did, then the
/// cool-down's passes alone.
Program from_passes(const Request& options, const VBlock& block) {
  plan::Work work(options.stop);
  Timetable timetable = repeat(block, options.micro_batches);
  for (const Pull what : {Pull::Ends, Pull::Passes}) {
    for (TimetableRow& line : timetable) give_weights(line);
    pull_in(timetable, peak(timetable), what, work);
    require(squeeze(timetable, work), "a building block whose passes wait for each other");
  }
  for (TimetableRow& line : timetable) name_weights(line);
  return timetable_program(timetable, options.micro_batches, Placement::vee(options.ranks));
}

/// Forwards down and up the V one cell apart, then backwards down and up two cells apart, with a
/// run of three idle cells after every third backward.
VBlock fused_block(int ranks) {
  VBlock block;
  for (int rank = 0; rank < ranks; ++rank) block.push_back({rank, 2 * ranks - 1 - rank});
  int column = 2 * ranks + (ranks % 3 == 0 ? 3 : 0);
  int in_run = (3 - (ranks + 2) % 3) % 3;
  for (int step = 0; step < 2 * ranks; ++step) {
    const bool is_down = step < ranks;
    auto& columns = block[static_cast<std::size_t>(is_down ? step : 2 * ranks - 1 - step)];
    columns[is_down ? kB : kb] = column;
    columns[is_down ? kW : kw] = column + 1;
    column += 2;
    if (++in_run % 3 == 0) column += 3;
  }
  return block;
}

}  // namespace

void for_each_block(int ranks, const std::function<Verdict(const VBlock&)>& visit) {
  for (int f = 1; f < kPeriod; ++f)
    for (int B = 1; B < kPeriod; ++B)
      for (int b = 1; b < kPeriod; ++b)
        if (!visit_shifts(ranks, {0, f, B, b}, visit)) return;
}

Timetable repeat(const VBlock& block, int micro_batches) {
  Timetable timetable(block.size());
  for (std::size_t rank = 0; rank < block.size(); ++rank) {
    const int longest = *std::ranges::max_element(block[rank]) + kPeriod * (micro_batches + 1);
    timetable[rank].reserve(static_cast<std::size_t>(longest));
    for (const Symbol symbol : {kF, kf, kB, kb, kW, kw})
      if (const int column = block[rank][symbol]; column != kNowhere)
        put_every(timetable[rank], column, kPeriod, symbol, micro_batches);
  }
  return timetable;
}

// The gaps keep the four columns of a rank apart modulo the period.

Program v_half(const Request& options) {
  const int p = options.ranks, gap = p % 2 == 0 ? 3 : 0;
  VBlock block;
  for (int r = 0; r < p; ++r)
    block.push_back(
        {2 * r, 3 * p - 2 - r, 3 * p + gap + 2 * r - 1, 6 * p + gap - 2 - r, kNowhere, kNowhere});
  return from_passes(options, block);
}

Program v_min(const Request& options) {
  const int p = options.ranks, gap = p % 3 == 0 ? 2 : 0;
  VBlock block;
  for (int r = 0; r < p; ++r)
    block.push_back({r, 2 * p - 1 - r, 2 * p + gap + r, 4 * p + gap - 1 - r, kNowhere, kNowhere});
  return from_passes(options, block);
}

Program one_f_one_b_v(const Request& options) {
  Timetable timetable = repeat(fused_block(options.ranks), options.micro_batches);
  plan::Work work(options.stop);
  pull_in(timetable, peak(timetable), Pull::Whole, work);
  return timetable_program(timetable, options.micro_batches, Placement::vee(options.ranks), true);
}

}  // namespace millrace::generators
