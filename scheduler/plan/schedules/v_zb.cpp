// V-ZB (Qi et al. 2024, "Pipeline Parallelism with Controllable Memory"): every building block is
// repeated, its warm-up and cool-down rewritten, its holes filled; the shortest span wins.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "plan/schedules/families.hpp"
#include "plan/schedules/timetable.hpp"
#include "plan/text/number_text.hpp"

namespace millrace::generators {

namespace {

/// Rewrites what rank i runs before its first b: forwards of chunk 0, then F f in turn, then rounds
/// of B W f.
TimetableRow warmed_up(const TimetableRow& line, int ranks, int rank, int cap) {
  const auto first_b = std::ranges::find(line, kb);
  SymbolCount left{};
  for (auto cell = line.begin(); cell != first_b; ++cell)
    if (*cell != kBlank) ++left[*cell];
  const int most_f = std::min(rank + 1, cap / 2), most_F = cap - most_f;
  const int late_F = std::max(0, left[kF] - most_F), late_f = std::max(0, left[kf] - most_f);

  TimetableRow head;
  const auto take = [&](Symbol symbol, int late = 0) {
    if (left[symbol] <= late) return;
    --left[symbol];
    head.push_back(symbol);
  };
  for (int cell = 0; cell < 2 * (ranks - 1 - rank); ++cell) take(kF, late_F);
  for (int turn = 0; turn <= rank; ++turn) {
    take(kF, late_F);
    take(kf, late_f);
  }
  while (left != SymbolCount{}) {
    take(kB);
    take(kW);
    take(left[kf] > 0 ? kf : kF);
  }
  head.insert(head.end(), first_b, line.end());
  return head;
}

/// Keeps the first `micro_batches` of every symbol.
void trim(TimetableRow& line, int micro_batches) {
  SymbolCount kept{};
  for (Symbol& symbol : line)
    if (symbol != kBlank && ++kept[symbol] > micro_batches) symbol = kBlank;
}

/// Moves the `moved` earliest weight halves to the end.
void postpone_weights(TimetableRow& line, int moved) {
  TimetableRow tail;
  for (Symbol& symbol : line)
    if (is_weight(symbol) && moved-- > 0) tail.push_back(std::exchange(symbol, kBlank));
  line.insert(line.end(), tail.begin(), tail.end());
}

/// Rewrites the last backwards of rank i as two combs that end at the turn of the last f of rank 0,
/// and lets weight halves fill what is between; false when a comb meets something.
bool cool_down(TimetableRow& line, int ranks, int rank, int cap, int micro_batches, int turn) {
  const int last_b = std::min((cap + 1) / 2, micro_batches);
  const int last_B = std::min({rank + 1, cap - last_b, micro_batches});
  // Weight halves go from the right until every erased backward has one and the cap is reached.
  SymbolCount erased{};
  const auto goes = [&](Symbol symbol) {
    if (symbol == kb) return erased[kb] < last_b;
    if (symbol == kB) return erased[kB] < last_B;
    return is_weight(symbol) &&
           (erased[kW] < last_B || erased[kw] < last_b || erased[kW] + erased[kw] < cap);
  };
  for (auto cell = line.rbegin(); cell != line.rend(); ++cell)
    if (goes(*cell)) ++erased[std::exchange(*cell, kBlank)];

  if (!put_every(line, turn - rank + 2 * ranks, -2, kb, last_b)) return false;
  if (!put_every(line, turn + 1 + rank, -2, kB, last_B)) return false;
  const auto last_weight = std::find_if(line.rbegin(), line.rend(), is_weight);
  name_weights(line, static_cast<std::size_t>(line.rend() - last_weight));
  return true;
}

// A repeated block becomes a timetable under the cap in three steps, in place; false when one
// fails.

bool warm_up(Timetable& timetable, int allowed, plan::Work& work) {
  if (!squeeze(timetable, work)) return false;
  const int ranks = static_cast<int>(timetable.size()), most = std::min(peak(timetable), 2 * ranks);
  for (int rank = 0; TimetableRow & line : timetable) line = warmed_up(line, ranks, rank++, most);
  return squeeze(timetable, work) && peak(timetable) <= allowed;
}

/// Keeps the first micro-batches.
bool shorten(Timetable& timetable, int allowed, int cap, int micro_batches, plan::Work& work) {
  for (TimetableRow& line : timetable) {
    trim(line, micro_batches);
    if (micro_batches <= static_cast<int>(timetable.size()) && 2 * micro_batches <= cap)
      postpone_weights(line, allowed - peak(line));
  }
  return squeeze(timetable, work) && peak(timetable) <= cap;
}

bool end(Timetable& timetable, int cap, int micro_batches, plan::Work& work) {
  const int ranks = static_cast<int>(timetable.size()), most = peak(timetable);
  const auto last_f = std::ranges::find(timetable.front().rbegin(), timetable.front().rend(), kf);
  const int turn = static_cast<int>(timetable.front().rend() - last_f) - 1;
  for (int rank = 0; TimetableRow & line : timetable)
    if (!cool_down(line, ranks, rank++, most, micro_batches, turn)) return false;
  if (!squeeze(timetable, work)) return false;
  fill_holes(timetable, most, work);
  for (TimetableRow& line : timetable) std::ranges::replace_if(line, is_weight, kOwed);
  return peak(timetable) <= cap;
}

/// Chunk activations that fit under the limit, at most 2p.
int chunk_cap(const Request& options) {
  const double limit = memory_limit_of(options);
  const double chunks = std::floor(2 * limit / options.mean.memory_forward * (1 + 1e-12));
  return static_cast<int>(std::min(chunks, 2.0 * options.ranks));
}

/// The most that a rank holds at any moment.
double most_held(const Timetable& timetable, const Request& options) {
  const double forward = options.mean.memory_forward / 2, input = options.mean.memory_input / 2;
  const double inside = std::max(0.0, options.mean.memory_input_peak.value_or(0) / 2);
  const double passing = options.mean.memory_forward_peak / 2;
  double most = 0;
  for (const TimetableRow& line : timetable) {
    double level = 0;
    for (const Symbol symbol : line) {
      const bool is_input = symbol == kb || symbol == kB;
      const bool is_forward = symbol == kF || symbol == kf;
      if (is_forward) most = std::max(most, level + passing);
      if (is_forward) level += forward;
      if (is_input) most = std::max(most, level + inside);
      if (is_input) level += input;
      if (symbol == kOwed) level += options.mean.memory_weight / 2;
      most = std::max(most, level);
    }
  }
  return most;
}

/// The span that no block goes below, in the costs' ticks: with equal passes, free links and at
/// least 2p micro-batches the envelope of the paper's authors, with k chunks held
/// 3p-1-3k + max(3p, p+1+2 ceil(k/2)) passes beyond the work; else the work alone.
double least_span(const Request& options, int cap, const TimetableCosts& costs) {
  const double work = 2 * options.micro_batches * (costs.forward + costs.input + costs.weight);
  const int p = options.ranks;
  const bool has_envelope = costs.forward == costs.input && costs.input == costs.weight &&
                            costs.latency == 0 && options.micro_batches >= 2 * p;
  if (!has_envelope) return work;
  return work +
         costs.forward * (3 * p - 1 - 3 * cap + std::max(3 * p, p + 1 + 2 * ((cap + 1) / 2)));
}

}  // namespace

Program v_zb(const Request& options) {
  const int cap = chunk_cap(options);
  // A chunk is half a stage; doubling the latency instead keeps integers whole.
  const TimetableCosts costs{
      options.mean.forward, options.mean.input, options.mean.weight, 2 * options.mean.latency};
  plan::Work work(options.stop);
  // Blocks are built for at least 2p micro-batches.
  const int p = options.ranks, m = options.micro_batches, repeated = std::max(m, 2 * p);
  Timetable best;
  double best_span = std::numeric_limits<double>::infinity();
  const double enough = least_span(options, cap, costs) * (1 + 1e-12);  // up to rounding
  const double limit = memory_limit_of(options) * (1 + 1e-9);
  for_each_block(p, [&](const VBlock& block) {
    work.spend(block.size());
    Timetable timetable = repeat(block, repeated);
    const int allowed = peak(timetable);
    if (allowed > (m < repeated ? 2 * p : cap)) return Verdict::TooMuchMemory;
    if (!warm_up(timetable, allowed, work) ||
        (m < repeated && !shorten(timetable, allowed, cap, m, work)) ||
        !end(timetable, cap, m, work))
      return Verdict::GoOn;
    if (options.memory_limit && most_held(timetable, options) > limit) return Verdict::GoOn;
    const std::optional<double> span = span_of(timetable, costs, work);
    if (span && *span < best_span) {
      best_span = *span;
      best = std::move(timetable);
    }
    return best_span <= enough ? Verdict::Best : Verdict::GoOn;
  });
  require(!best.empty(),
          "no building block with " + named("ranks") + " " + std::to_string(options.ranks) +
              " and " + named("micro_batches") + " " + std::to_string(options.micro_batches) +
              " holds at most " + std::to_string(cap) + " chunk activations; " +
              named("memory_limit") + " " +
              plan::number_text(options.ranks * options.mean.memory_forward) + " works");
  return timetable_program(best, options.micro_batches, Placement::vee(options.ranks));
}

}  // namespace millrace::generators
