// V-ZB (Qi et al. 2024, "Pipeline Parallelism with Controllable Memory"): every building block is
// repeated, its warm-up and cool-down rewritten, its holes filled; the shortest span wins.
#include "plan/schedules/v_zb.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "plan/schedules/options.hpp"
#include "plan/schedules/v_blocks.hpp"
#include "plan/text/number_text.hpp"

namespace millrace::generators {

namespace {

constexpr std::size_t at(Symbol symbol) {
  return static_cast<std::size_t>(symbol);
}

/// Rewrites what rank i runs before its first b: forwards of chunk 0, then F f in turn, then rounds
/// of B W f.
TimetableRow warmed_up(const TimetableRow& line, int ranks, int rank, int cap, int micro_batches) {
  const auto first_b = std::find(line.begin(), line.end(), kb);
  SymbolCount left = count(TimetableRow(line.begin(), first_b));
  const int most_f = std::min({rank + 1, cap / 2, micro_batches});
  const int most_F = std::min(cap - most_f, micro_batches);
  const SymbolCount all = left;

  TimetableRow head;
  const auto take = [&](Symbol symbol) {
    if (left[at(symbol)] == 0) return;
    --left[at(symbol)];
    head.push_back(symbol);
  };
  const auto used = [&](Symbol symbol) { return all[at(symbol)] - left[at(symbol)]; };
  for (int cell = 0; cell < 2 * (ranks - 1 - rank); ++cell)
    if (used(kF) < most_F) take(kF);
  for (int turn = 0; turn <= rank; ++turn) {
    if (used(kF) < most_F) take(kF);
    if (used(kf) < most_f) take(kf);
  }
  while (left != SymbolCount{}) {
    take(kB);
    take(kW);
    if (left[at(kf)] > 0)
      take(kf);
    else
      take(kF);
    if (left[at(kb)] + left[at(kw)] > 0) return {};
  }
  head.insert(head.end(), first_b, line.end());
  return head;
}

/// Keeps the first `micro_batches` of every symbol.
void trim(TimetableRow& line, int micro_batches) {
  SymbolCount kept{};
  for (Symbol& symbol : line)
    if (symbol != kBlank && ++kept[at(symbol)] > micro_batches) symbol = kBlank;
}

/// Moves the `moved` earliest weight halves to the end.
void postpone_weights(TimetableRow& line, int moved) {
  TimetableRow tail;
  for (Symbol& symbol : line)
    if (moved > 0 && is_weight(symbol)) {
      tail.push_back(symbol);
      symbol = kBlank;
      --moved;
    }
  line.insert(line.end(), tail.begin(), tail.end());
}

/// Erases the last `erased` occurrences of a symbol.
void erase_last(TimetableRow& line, Symbol symbol, int erased) {
  for (auto cell = line.rbegin(); cell != line.rend() && erased > 0; ++cell)
    if (*cell == symbol) {
      *cell = kBlank;
      --erased;
    }
}

/// Puts `number` symbols at `column`, column - 2, ...; false when a cell is taken.
bool put_leftwards(TimetableRow& line, Symbol symbol, int column, int number) {
  for (int placed = 0; placed < number; ++placed, column -= 2) {
    if (column < 0) return false;
    const auto cell = static_cast<std::size_t>(column);
    if (cell >= line.size()) line.resize(cell + 1, kBlank);
    if (line[cell] != kBlank) return false;
    line[cell] = symbol;
  }
  return true;
}

/// Rewrites the last backwards of rank i as two combs that end at the turn of the last f of rank 0,
/// and lets weight halves fill what is between.
bool cool_down(TimetableRow& line, int ranks, int rank, int cap, int micro_batches, int turn) {
  const int last_b = std::min((cap + 1) / 2, micro_batches);
  const int last_B = std::min(rank + 1, std::min(cap - last_b, micro_batches));
  erase_last(line, kB, last_B);
  erase_last(line, kb, last_b);

  // Weight halves go from the right until every erased backward has one and the cap is reached.
  SymbolCount erased{};
  std::size_t end = line.size();
  while (end > 0 && (erased[at(kW)] < last_B || erased[at(kw)] < last_b ||
                     erased[at(kW)] + erased[at(kw)] < cap)) {
    Symbol& symbol = line[--end];
    if (!is_weight(symbol)) continue;
    ++erased[at(symbol)];
    symbol = kBlank;
  }

  if (!put_leftwards(line, kb, turn - rank + 2 * ranks, last_b)) return false;
  if (!put_leftwards(line, kB, turn + 1 + rank, last_B)) return false;

  const auto last_weight = std::find_if(line.rbegin(), line.rend(), is_weight);
  const std::size_t from = static_cast<std::size_t>(line.rend() - last_weight);
  SymbolCount seen{};
  for (std::size_t column = 0; column < line.size(); ++column) {
    Symbol& symbol = line[column];
    if (symbol == kBlank && column >= from) {
      if (erased[at(kW)] > 0 && seen[at(kB)] > seen[at(kW)])
        symbol = kW;
      else if (erased[at(kw)] > 0 && seen[at(kb)] > seen[at(kw)])
        symbol = kw;
      if (symbol != kBlank) --erased[at(symbol)];
    }
    if (symbol != kBlank) ++seen[at(symbol)];
  }
  line.insert(line.end(), static_cast<std::size_t>(erased[at(kW)]), kW);
  line.insert(line.end(), static_cast<std::size_t>(erased[at(kw)]), kw);
  return true;
}

/// One block turned into a timetable under the cap, step by step; nothing when a step fails.
class BlockBuilder {
 public:
  BlockBuilder(const ScheduleOptions& options, int cap, plan::Work& work)
      : ranks_(options.ranks),
        micro_batches_(options.micro_batches),
        repeated_(std::max(options.micro_batches, 2 * options.ranks)),
        cap_(cap),
        work_(work) {}

  Verdict build(const VBlock& block, Timetable& timetable) const {
    timetable = repeat(block, repeated_);
    int allowed = peak(timetable);
    if (allowed > 2 * ranks_ || (micro_batches_ == repeated_ && allowed > cap_)) {
      timetable.clear();
      return Verdict::TooMuchMemory;
    }
    if (!squeeze(timetable, work_) || !warm_up(timetable, allowed) ||
        !shorten(timetable, allowed) || !end(timetable))
      timetable.clear();
    return Verdict::GoOn;
  }

 private:
  bool warm_up(Timetable& timetable, int allowed) const {
    const int most = std::min(peak(timetable), 2 * ranks_);
    for (int rank = 0; rank < ranks_; ++rank) {
      TimetableRow& line = timetable[static_cast<std::size_t>(rank)];
      line = warmed_up(line, ranks_, rank, most, repeated_);
    }
    return squeeze(timetable, work_) && peak(timetable) <= allowed;
  }

  /// Blocks are built for at least 2p micro-batches; keeps the first m.
  bool shorten(Timetable& timetable, int allowed) const {
    if (micro_batches_ == repeated_) return true;
    const int most = std::min(2 * ranks_, allowed);
    for (TimetableRow& line : timetable) {
      trim(line, micro_batches_);
      if (micro_batches_ <= ranks_ && 2 * micro_batches_ <= cap_ && peak(line) < most)
        postpone_weights(line, most - peak(line));
    }
    return squeeze(timetable, work_) && peak(timetable) <= cap_;
  }

  bool end(Timetable& timetable) const {
    const int most = peak(timetable);
    const TimetableRow& first = timetable.front();
    const int turn =
        static_cast<int>(first.rend() - std::find(first.rbegin(), first.rend(), kf)) - 1;
    for (int rank = 0; rank < ranks_; ++rank)
      if (!cool_down(
              timetable[static_cast<std::size_t>(rank)], ranks_, rank, most, micro_batches_, turn))
        return false;
    if (!squeeze(timetable, work_)) return false;
    fill_holes(timetable, most, work_);
    for (TimetableRow& line : timetable) order_weights(line);
    return peak(timetable) <= cap_;
  }

  int ranks_, micro_batches_, repeated_, cap_;
  plan::Work& work_;
};

/// Chunk activations that fit under the limit, at most 2p.
int chunk_cap(const ScheduleOptions& options) {
  const double limit = memory_limit_of(options);
  const double chunks = std::floor(2 * limit / options.memory_forward * (1 + 1e-12));
  return static_cast<int>(std::min(chunks, 2.0 * options.ranks));
}

/// The span that no block goes below, in the costs' ticks: with equal passes, free links and at
/// least 2p micro-batches the envelope of the paper's authors, with k chunks held
/// 3p-1-3k + max(3p, p+1+2 ceil(k/2)) passes beyond the work; else the work alone.
double least_span(const ScheduleOptions& options, int cap, const TimetableCosts& costs) {
  const double work = 2 * options.micro_batches * (costs.forward + costs.input + costs.weight);
  const int p = options.ranks;
  const bool has_envelope = costs.forward == costs.input && costs.input == costs.weight &&
                            costs.latency == 0 && options.micro_batches >= 2 * p;
  if (!has_envelope) return work;
  return work +
         costs.forward * (3 * p - 1 - 3 * cap + std::max(3 * p, p + 1 + 2 * ((cap + 1) / 2)));
}

}  // namespace

Program v_zb(const ScheduleOptions& options) {
  const int cap = chunk_cap(options);
  // A chunk is half a stage; doubling the latency instead keeps integers whole.
  const TimetableCosts costs{options.forward, options.input, options.weight, 2 * options.latency};
  plan::Work work(options.stop);
  const BlockBuilder builder(options, cap, work);
  Timetable best;
  double best_span = std::numeric_limits<double>::infinity();
  const double enough = least_span(options, cap, costs) * (1 + 1e-12);  // up to rounding
  for_each_block(options.ranks, [&](const VBlock& block) {
    work.spend(block.size());
    Timetable timetable;
    const Verdict verdict = builder.build(block, timetable);
    if (timetable.empty()) return verdict;
    const std::optional<double> span = span_of(timetable, costs, work);
    if (span && *span < best_span) {
      best_span = *span;
      best = std::move(timetable);
    }
    return best_span <= enough ? Verdict::Best : verdict;
  });
  require(!best.empty(),
          "no building block with " + named("ranks") + " " + std::to_string(options.ranks) +
              " and " + named("micro_batches") + " " + std::to_string(options.micro_batches) +
              " holds at most " + std::to_string(cap) + " chunk activations; " +
              named("memory_limit") + " " +
              plan::number_text(options.ranks * options.memory_forward) + " works");
  return timetable_program(best, options.micro_batches, Placement::vee(options.ranks));
}

}  // namespace millrace::generators
