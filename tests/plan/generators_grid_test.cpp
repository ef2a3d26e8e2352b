// Every schedule of the catalogue over the grid of counts at which schedules change: p = 1 to 8, 12
// and 16; m = 1, p-1, p, p+1, 2p-1, 2p, 3p and 8p; v and q = 1 to 4. Each program is valid,
// survives its text forms, is proved under rendezvous once it has messages, and is timed as oracles
// time it.
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "plan/grid_checks.hpp"
#include "support/figures.hpp"

namespace millrace {
namespace {

using testing_plan::expect_right_everywhere;
using testing_plan::kRanks;
using testing_plan::sized;
using testing_plan::telling_micro_batches;

TEST(Catalogue, OneChunkSchedulesAreRightOverTheGrid) {
  for (const ScheduleEntry& entry : schedules())
    if (!entry.takes("chunks") && !entry.takes("slices") && entry.name != "v-zb")
      expect_right_everywhere(entry, 1, 16);
}

TEST(Catalogue, TheSearchOverBlocksIsRightOverTheGrid) {
  expect_right_everywhere(find_schedule("v-zb"), 1, 8);
}

TEST(Catalogue, LoopedSchedulesAreRightOverTheGrid) {
  for (const ScheduleEntry& entry : schedules())
    if (entry.takes("chunks") && !entry.takes("slices")) expect_right_everywhere(entry, 1, 16);
}

TEST(Catalogue, SlicedSchedulesAreRightOverTheGrid) {
  for (const ScheduleEntry& entry : schedules())
    if (entry.takes("slices")) expect_right_everywhere(entry, 1, 16);
}

TEST(Catalogue, NamesTheNearestScheduleForAnUnknownOne) {
  try {
    static_cast<void>(find_schedule("1f1c"));
    FAIL() << "1f1c is not a schedule";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("unknown schedule '1f1c'; did you mean '1f1b'?"),
              std::string::npos)
        << error.what();
  }
}

TEST(Catalogue, RefusesAnOptionThatTheScheduleDoesNotHave) {
  ScheduleOptions options;
  options.chunks = 2;
  try {
    static_cast<void>(generate("1f1b", options));
    FAIL() << "1f1b has no chunks";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(std::string(error.what()).find("chunks 2 was given, but schedule '1f1b' has no"), 0U)
        << error.what();
  }
}

TEST(Agreement, ZeroBubbleGeneratorsMeetWhereTheirParametersDo) {
  for (const int p : kRanks)
    for (const int m : telling_micro_batches(p)) {
      const Program h1 = generate("zb-h1", sized(p, m));
      ScheduleOptions one = sized(p, m);
      one.chunks = 1;
      EXPECT_EQ(generate("interleaved-zb", one), h1) << p << " " << m;
      if (m >= 2 * p - 1) {
        EXPECT_EQ(generate("zb-auto", sized(p, m)), h1) << p << " " << m;
      }
    }
}

TEST(Agreement, SeqPipeOneChunk_IsSeq1F1B) {
  for (const int p : kRanks)
    for (const int m : telling_micro_batches(p))
      for (int q = 1; q <= 4; ++q) {
        ScheduleOptions options = sized(p, m);
        options.slices = q;
        const Program seq = generate("seq-1f1b", options);
        options.chunks = 1;
        EXPECT_EQ(generate("seqpipe", options), seq) << p << " " << m << " " << q;
      }
}

/// Every action of `two` is that of `one`, micro-batches counted from their direction's first.
void expect_mirrors(const std::vector<Action>& two, const std::vector<Action>& one, int half) {
  ASSERT_EQ(two.size(), one.size());
  for (std::size_t i = 0; i < one.size(); ++i) {
    ASSERT_EQ(two[i].op, one[i].op);
    ASSERT_EQ(two[i].stage, one[i].stage);
    ASSERT_EQ(two[i].with_next, one[i].with_next);
    ASSERT_EQ(two[i].micro_batch.value - half * two[i].replica_number, one[i].micro_batch.value);
  }
}

TEST(Agreement, DualPipe_IsDualPipeVFromBothEnds) {
  int compared = 0;
  for (const int p : kRanks)
    for (const int m : telling_micro_batches(p)) {
      if (p % 2 != 0 || m % 2 != 0 || m < 2 * p) continue;
      const Program dual = generate("dualpipe", sized(p, m));
      const Program half = generate("dualpipe-v", sized(p / 2, m / 2));
      for (std::size_t rank = 0; rank < half.ranks.size(); ++rank) {
        expect_mirrors(dual.ranks[rank], half.ranks[rank], m / 2);
        expect_mirrors(dual.ranks[dual.ranks.size() - 1 - rank], half.ranks[rank], m / 2);
      }
      ++compared;
    }
  EXPECT_GE(compared, 18);
}

TEST(Agreement, InterleavedWithOneGroup_IsBreadthFirst) {
  int compared = 0;
  for (const int p : kRanks)
    for (const int m : telling_micro_batches(p))
      for (int v = 1; v <= 4; ++v) {
        ScheduleOptions options = sized(p, m);
        options.chunks = v;
        const Program bfs = generate("bfs", options);
        options.group = m;
        const Program interleaved = generate("interleaved", options);
        // Warm-up of rank r: 2(p-1-r) + (v-1)m of v m forwards.
        for (int r = 0; r < p && 2 * (p - 1 - r) >= m; ++r, ++compared)
          EXPECT_EQ(interleaved.ranks[static_cast<std::size_t>(r)],
                    bfs.ranks[static_cast<std::size_t>(r)])
              << p << " " << m << " " << v << " " << r;
      }
  EXPECT_GT(compared, 400);
}

/// 1F1B's order of stage s when F sits on the steps of s's parity and B on the others.
std::vector<Action> by_parity(int s, int p, int m) {
  std::vector<Action> mapped;
  for (int step = s; step < 2 * (m + p - 1); ++step) {
    const bool forward = step % 2 == s % 2;
    const int unit = forward ? (step - s) / 2 : (step + s + 1) / 2 - p;
    if (unit < 0 || unit >= m) continue;
    mapped.push_back({.op = forward ? Op::Forward : Op::Backward,
                      .stage = Stage{s},
                      .micro_batch = MicroBatch{unit},
                      .slice = {}});
  }
  return mapped;
}

TEST(Agreement, TheStepMapOfParityIsOneFOneB) {
  for (const int p : kRanks)
    for (const int m : telling_micro_batches(p)) {
      const Program program = generate("1f1b", sized(p, m));
      for (int s = 0; s < p; ++s)
        ASSERT_EQ(program.ranks[static_cast<std::size_t>(s)], by_parity(s, p, m))
            << p << " " << m << " " << s;
    }
}

}  // namespace
}  // namespace millrace
