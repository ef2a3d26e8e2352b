// Three schedules of one building block: where its ops stand is a formula, the rest is repetition
// and what timetables can do.
#include "plan/schedules/v_single.hpp"

#include <array>

#include "plan/schedules/v_blocks.hpp"

namespace millrace::generators {

namespace {

/// Columns of F, f, B and b of micro-batch 0 on one rank.
using Block = std::array<int, 4>;

/// Repeats the blocks of all ranks, gives the weight halves the cells between, pulls the warm-up
/// and the cool-down forward as long as no rank holds more than the repeated pattern did, then the
/// cool-down's passes alone.
Program from_blocks(const ScheduleOptions& options, const std::vector<Block>& blocks) {
  plan::Work work(options.stop);
  Timetable timetable(blocks.size());
  for (std::size_t rank = 0; rank < blocks.size(); ++rank)
    for (const Symbol symbol : {kF, kf, kB, kb})
      put_every_period(timetable[rank],
                       blocks[rank][static_cast<std::size_t>(symbol)],
                       symbol,
                       options.micro_batches);
  for (const Pull what : {Pull::Ends, Pull::Passes}) {
    give_weights(timetable);
    pull_in(timetable, peak(timetable), what, work);
    require(squeeze(timetable, work), "a building block whose passes wait for each other");
  }
  for (TimetableRow& line : timetable) name_weights(line);
  return timetable_program(timetable, options.micro_batches, Placement::vee(options.ranks));
}

/// Forwards down and up the V one cell apart, then backwards down and up two cells apart, with a
/// run of three idle cells after every third backward.
Timetable fused_block(int ranks, int micro_batches) {
  Timetable timetable(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    TimetableRow& line = timetable[static_cast<std::size_t>(rank)];
    put_every_period(line, rank, kF, micro_batches);
    put_every_period(line, 2 * ranks - 1 - rank, kf, micro_batches);
  }

  int column = 2 * ranks + (ranks % 3 == 0 ? 3 : 0);
  int in_run = (3 - (ranks + 2) % 3) % 3;
  for (const Symbol input : {kB, kb})
    for (int step = 0; step < ranks; ++step) {
      TimetableRow& line =
          timetable[static_cast<std::size_t>(input == kB ? step : ranks - 1 - step)];
      put_every_period(line, column, input, micro_batches);
      put_every_period(line, column + 1, input == kB ? kW : kw, micro_batches);
      column += 2;
      if (++in_run == 3) {
        in_run = 0;
        column += 3;
      }
    }
  return timetable;
}

}  // namespace

// The gaps keep the four columns of a rank apart modulo the period.

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

Program one_f_one_b_v(const ScheduleOptions& options) {
  Timetable timetable = fused_block(options.ranks, options.micro_batches);
  plan::Work work(options.stop);
  pull_in(timetable, peak(timetable), Pull::Whole, work);
  return timetable_program(timetable, options.micro_batches, Placement::vee(options.ranks), true);
}

}  // namespace millrace::generators
