// Enumerates and repeats the building blocks of the V pipelines.
#include "plan/schedules/v_blocks.hpp"

#include <utility>

namespace millrace::generators {

namespace {

/// Places W and w at the first free residues at or after B and b.
void add_weights(Residues& residues) {
  std::array<bool, kPeriod> taken{};
  for (const Symbol symbol : {kF, kf, kB, kb})
    taken[static_cast<std::size_t>(residues[static_cast<std::size_t>(symbol)])] = true;
  for (const auto& [input, weight] : {std::pair{kB, kW}, {kb, kw}}) {
    int residue = residues[static_cast<std::size_t>(input)];
    while (taken[static_cast<std::size_t>(residue)]) residue = (residue + 1) % kPeriod;
    taken[static_cast<std::size_t>(residue)] = true;
    residues[static_cast<std::size_t>(weight)] = residue;
  }
}

bool are_distinct(const std::array<int, 4>& residues) {
  for (std::size_t a = 0; a < 4; ++a)
    for (std::size_t b = a + 1; b < 4; ++b)
      if (residues[a] == residues[b]) return false;
  return true;
}

/// First column at or after `cursor` with this residue.
int next_column(int cursor, int residue) {
  return cursor + (residue - cursor % kPeriod + kPeriod) % kPeriod;
}

}  // namespace

void put_every_period(TimetableRow& line, int first, Symbol symbol, int micro_batches) {
  for (int m = 0; m < micro_batches; ++m) {
    const auto column = static_cast<std::size_t>(first + kPeriod * m);
    if (column >= line.size()) line.resize(column + 1, kBlank);
    line[column] = symbol;
  }
}

std::optional<VBlock> shifted_block(
    int ranks, const std::array<int, 4>& first, int near, int far, int near_ranks) {
  VBlock block;
  std::array<int, 4> now = first;
  for (int rank = 0; rank < ranks; ++rank) {
    if (!are_distinct(now)) return std::nullopt;
    Residues residues{now[0], now[1], now[2], now[3], 0, 0};
    add_weights(residues);
    block.push_back(residues);
    const int delta = rank < near_ranks ? near : far;
    for (std::size_t symbol = 0; symbol < 4; ++symbol)
      now[symbol] = (now[symbol] + (symbol % 2 == 0 ? delta : kPeriod - 1)) % kPeriod;
  }
  return block;
}

namespace {

/// Columns of the four passes on the first rank, all ways; the first pass is at 0.
std::vector<std::array<int, 4>> first_patterns() {
  std::vector<std::array<int, 4>> patterns;
  for (int second = 1; second < kPeriod; ++second)
    for (int third = 1; third < kPeriod; ++third)
      for (int fourth = 1; fourth < kPeriod; ++fourth)
        if (are_distinct({0, second, third, fourth}))
          patterns.push_back({0, second, third, fourth});
  return patterns;
}

}  // namespace

void for_each_block(int ranks, const std::function<Verdict(const VBlock&)>& visit) {
  for (const auto& first : first_patterns())
    for (int near = kPeriod - 1; near >= 1; --near)
      for (int far = near; far >= 1; --far)
        // With equal shifts every split between near and far is the same block.
        for (int near_ranks = 1; near_ranks <= (near == far ? 1 : ranks - 1); ++near_ranks) {
          const auto block = shifted_block(ranks, first, near, far, near_ranks);
          if (!block) continue;
          const Verdict verdict = visit(*block);
          if (verdict == Verdict::Best) return;
          if (verdict == Verdict::TooMuchMemory) break;
        }
}

Timetable repeat(const VBlock& block, int micro_batches) {
  const int ranks = static_cast<int>(block.size());
  Timetable timetable(block.size());
  for (TimetableRow& line : timetable)
    line.reserve(static_cast<std::size_t>(kPeriod * (micro_batches + 8 * ranks)));
  int cursor = kPeriod;
  for (const Symbol symbol : {kF, kf, kB, kb})
    for (int step = 0; step < ranks; ++step) {
      const auto rank =
          static_cast<std::size_t>(symbol == kF || symbol == kB ? step : ranks - 1 - step);
      const Residues& residues = block[rank];
      cursor = next_column(cursor, residues[static_cast<std::size_t>(symbol)]);
      put_every_period(timetable[rank], cursor, symbol, micro_batches);
      ++cursor;
      if (is_forward(symbol)) continue;
      const Symbol weight = symbol == kB ? kW : kw;
      put_every_period(timetable[rank],
                       next_column(cursor, residues[static_cast<std::size_t>(weight)]),
                       weight,
                       micro_batches);
    }
  return timetable;
}

}  // namespace millrace::generators
