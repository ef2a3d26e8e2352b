// Three schedules of one building block: where its ops stand is a formula, the rest is repetition
// and what timetables can do.
#include "plan/schedules/v_single.hpp"

#include "plan/schedules/v_blocks.hpp"

namespace millrace::generators {

namespace {

/// Repeats a block without weight halves: gives them the cells between, pulls the warm-up and the
/// cool-down forward as long as no rank holds more than the repeated pattern did, then the
/// cool-down's passes alone.
Program from_passes(const ScheduleOptions& options, const VBlock& block) {
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

// The gaps keep the four columns of a rank apart modulo the period.

Program v_half(const ScheduleOptions& options) {
  const int p = options.ranks, gap = p % 2 == 0 ? 3 : 0;
  VBlock block;
  for (int r = 0; r < p; ++r)
    block.push_back(
        {2 * r, 3 * p - 2 - r, 3 * p + gap + 2 * r - 1, 6 * p + gap - 2 - r, kNowhere, kNowhere});
  return from_passes(options, block);
}

Program v_min(const ScheduleOptions& options) {
  const int p = options.ranks, gap = p % 3 == 0 ? 2 : 0;
  VBlock block;
  for (int r = 0; r < p; ++r)
    block.push_back({r, 2 * p - 1 - r, 2 * p + gap + r, 4 * p + gap - 1 - r, kNowhere, kNowhere});
  return from_passes(options, block);
}

Program one_f_one_b_v(const ScheduleOptions& options) {
  Timetable timetable = repeat(fused_block(options.ranks), options.micro_batches);
  plan::Work work(options.stop);
  pull_in(timetable, peak(timetable), Pull::Whole, work);
  return timetable_program(timetable, options.micro_batches, Placement::vee(options.ranks), true);
}

}  // namespace millrace::generators
