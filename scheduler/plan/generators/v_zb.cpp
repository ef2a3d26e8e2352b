// V-ZB (Qi et al. 2024, "Pipeline Parallelism with Controllable Memory"): every building block is
// repeated, its warm-up and cool-down rewritten, its holes filled; the shortest span wins.
#include "plan/generators/v_zb.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "plan/generators/options.hpp"
#include "plan/generators/v_blocks.hpp"
#include "plan/number_text.hpp"

namespace millrace::generators {

namespace {

constexpr std::size_t at(Symbol symbol) {
  return static_cast<std::size_t>(symbol);
}

/// Rewrites what rank i runs before its first b: forwards of chunk 0, then F f in turn, then rounds
/// of B W f.
Strip warmed_up(const Strip& strip, int ranks, int rank, int cap, int micro_batches) {
  const auto first_b = std::find(strip.begin(), strip.end(), kb);
  SymbolCount left = count(Strip(strip.begin(), first_b));
  const int most_f = std::min({rank + 1, cap / 2, micro_batches});
  const int most_F = std::min(cap - most_f, micro_batches);
  const SymbolCount all = left;

  Strip head;
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
  head.insert(head.end(), first_b, strip.end());
  return head;
}

/// Keeps the first `micro_batches` of every symbol.
void trim(Strip& strip, int micro_batches) {
  SymbolCount kept{};
  for (Symbol& symbol : strip)
    if (symbol != kBlank && ++kept[at(symbol)] > micro_batches) symbol = kBlank;
}

/// Moves the `moved` earliest weight halves to the end.
void postpone_weights(Strip& strip, int moved) {
  Strip tail;
  for (Symbol& symbol : strip)
    if (moved > 0 && is_weight(symbol)) {
      tail.push_back(symbol);
      symbol = kBlank;
      --moved;
    }
  strip.insert(strip.end(), tail.begin(), tail.end());
}

/// Erases the last `erased` occurrences of a symbol.
void erase_last(Strip& strip, Symbol symbol, int erased) {
  for (auto cell = strip.rbegin(); cell != strip.rend() && erased > 0; ++cell)
    if (*cell == symbol) {
      *cell = kBlank;
      --erased;
    }
}

/// Puts `number` symbols at `column`, column - 2, ...; false when a cell is taken.
bool put_leftwards(Strip& strip, Symbol symbol, int column, int number) {
  for (int placed = 0; placed < number; ++placed, column -= 2) {
    if (column < 0) return false;
    const auto cell = static_cast<std::size_t>(column);
    if (cell >= strip.size()) strip.resize(cell + 1, kBlank);
    if (strip[cell] != kBlank) return false;
    strip[cell] = symbol;
  }
  return true;
}

/// Rewrites the last backwards of rank i as two combs that end at the turn of the last f of rank 0,
/// and lets weight halves fill what is between.
bool cool_down(Strip& strip, int ranks, int rank, int cap, int micro_batches, int turn) {
  const int last_b = std::min((cap + 1) / 2, micro_batches);
  const int last_B = std::min(rank + 1, std::min(cap - last_b, micro_batches));
  erase_last(strip, kB, last_B);
  erase_last(strip, kb, last_b);

  // Weight halves go from the right until every erased backward has one and the cap is reached.
  SymbolCount erased{};
  std::size_t end = strip.size();
  while (end > 0 && (erased[at(kW)] < last_B || erased[at(kw)] < last_b ||
                     erased[at(kW)] + erased[at(kw)] < cap)) {
    Symbol& symbol = strip[--end];
    if (!is_weight(symbol)) continue;
    ++erased[at(symbol)];
    symbol = kBlank;
  }

  if (!put_leftwards(strip, kb, turn - rank + 2 * ranks, last_b)) return false;
  if (!put_leftwards(strip, kB, turn + 1 + rank, last_B)) return false;

  const auto last_weight = std::find_if(strip.rbegin(), strip.rend(), is_weight);
  const std::size_t from = static_cast<std::size_t>(strip.rend() - last_weight);
  SymbolCount seen{};
  for (std::size_t column = 0; column < strip.size(); ++column) {
    Symbol& symbol = strip[column];
    if (symbol == kBlank && column >= from) {
      if (erased[at(kW)] > 0 && seen[at(kB)] > seen[at(kW)])
        symbol = kW;
      else if (erased[at(kw)] > 0 && seen[at(kb)] > seen[at(kw)])
        symbol = kw;
      if (symbol != kBlank) --erased[at(symbol)];
    }
    if (symbol != kBlank) ++seen[at(symbol)];
  }
  strip.insert(strip.end(), static_cast<std::size_t>(erased[at(kW)]), kW);
  strip.insert(strip.end(), static_cast<std::size_t>(erased[at(kw)]), kw);
  return true;
}

/// Weight halves in the order of their backwards, whatever the chunk.
void relabel_weights(Strip& strip) {
  std::vector<Symbol> owed;
  std::size_t next = 0;
  for (Symbol& symbol : strip) {
    if (symbol == kB) owed.push_back(kW);
    if (symbol == kb) owed.push_back(kw);
    if (is_weight(symbol) && next < owed.size()) symbol = owed[next++];
  }
}

/// One block turned into strips under the cap, step by step; nothing when a step fails.
class BlockBuilder {
 public:
  BlockBuilder(const ScheduleOptions& options, int cap, plan::Work& work)
      : ranks_(options.ranks),
        micro_batches_(options.micro_batches),
        repeated_(std::max(options.micro_batches, 2 * options.ranks)),
        cap_(cap),
        work_(work) {}

  Verdict build(const VBlock& block, std::vector<Strip>& strips) const {
    strips = repeat(block, repeated_);
    int allowed = peak(strips);
    if (allowed > 2 * ranks_ || (micro_batches_ == repeated_ && allowed > cap_)) {
      strips.clear();
      return Verdict::TooMuchMemory;
    }
    if (!squeeze(strips, work_) || !warm_up(strips, allowed) || !shorten(strips, allowed) ||
        !end(strips))
      strips.clear();
    return Verdict::GoOn;
  }

 private:
  bool warm_up(std::vector<Strip>& strips, int allowed) const {
    const int most = std::min(peak(strips), 2 * ranks_);
    for (int rank = 0; rank < ranks_; ++rank) {
      Strip& strip = strips[static_cast<std::size_t>(rank)];
      strip = warmed_up(strip, ranks_, rank, most, repeated_);
    }
    return squeeze(strips, work_) && peak(strips) <= allowed;
  }

  /// Blocks are built for at least 2p micro-batches; keeps the first m.
  bool shorten(std::vector<Strip>& strips, int allowed) const {
    if (micro_batches_ == repeated_) return true;
    const int most = std::min(2 * ranks_, allowed);
    for (Strip& strip : strips) {
      trim(strip, micro_batches_);
      if (micro_batches_ <= ranks_ && 2 * micro_batches_ <= cap_ && peak(strip) < most)
        postpone_weights(strip, most - peak(strip));
    }
    return squeeze(strips, work_) && peak(strips) <= cap_;
  }

  bool end(std::vector<Strip>& strips) const {
    const int most = peak(strips);
    const Strip& first = strips.front();
    const int turn =
        static_cast<int>(first.rend() - std::find(first.rbegin(), first.rend(), kf)) - 1;
    for (int rank = 0; rank < ranks_; ++rank)
      if (!cool_down(
              strips[static_cast<std::size_t>(rank)], ranks_, rank, most, micro_batches_, turn))
        return false;
    if (!squeeze(strips, work_)) return false;
    fill_holes(strips, most, work_);
    for (Strip& strip : strips) relabel_weights(strip);
    return peak(strips) <= cap_;
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
double least_span(const ScheduleOptions& options, int cap, const StripCosts& costs) {
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
  const StripCosts costs{options.forward, options.input, options.weight, 2 * options.latency};
  plan::Work work(options.stop);
  const BlockBuilder builder(options, cap, work);
  std::vector<Strip> best;
  double best_span = std::numeric_limits<double>::infinity();
  const double enough = least_span(options, cap, costs) * (1 + 1e-12);  // up to rounding
  for_each_block(options.ranks, [&](const VBlock& block) {
    work.spend(block.size());
    std::vector<Strip> strips;
    const Verdict verdict = builder.build(block, strips);
    if (strips.empty()) return verdict;
    const StripTimes times = run_strips(strips, costs, work);
    if (times.complete && times.span < best_span) {
      best_span = times.span;
      best = std::move(strips);
    }
    return best_span <= enough ? Verdict::Best : verdict;
  });
  require(!best.empty(),
          "no building block with " + named("ranks") + " " + std::to_string(options.ranks) +
              " and " + named("micro_batches") + " " + std::to_string(options.micro_batches) +
              " holds at most " + std::to_string(cap) + " chunk activations; " +
              named("memory_limit") + " " +
              plan::number_text(options.ranks * options.memory_forward) + " works");
  return strips_program(best, options, false);
}

}  // namespace millrace::generators
