// Enumerates and repeats the building blocks of the V pipelines.
#include "plan/schedules/v_blocks.hpp"

#include <algorithm>
#include <optional>
#include <utility>

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

}  // namespace millrace::generators
