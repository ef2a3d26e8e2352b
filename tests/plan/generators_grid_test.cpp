// Every schedule of the catalogue over the grid of counts at which schedules change: verify is
// silent, or the generator refuses in one sentence; and generators agree where theory says so.
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/verify.hpp"
#include "support/figures.hpp"

namespace millrace {
namespace {

using testing::kRanks;
using testing::sized;
using testing::telling_micro_batches;

/// Number of legal points; a point that a generator refuses must say what works.
int verified(const ScheduleEntry& entry, const ScheduleOptions& options) {
  Program program;
  try {
    program = generate(entry.name, options);
  } catch (const InvalidArgument& refusal) {
    EXPECT_NE(std::string(refusal.what()).find("work"), std::string::npos) << refusal.what();
    return 0;
  }
  for (const Violation& violation : verify(program))
    ADD_FAILURE() << program.name << ": " << violation.sentence;
  return 1;
}

void expect_valid_everywhere(const ScheduleEntry& entry, const std::vector<int>& ranks) {
  int legal = 0;
  for (const int p : ranks)
    for (const int m : telling_micro_batches(p))
      for (int v = 1; v <= (entry.chunked ? 4 : 1); ++v)
        for (int q = 1; q <= (entry.sliced ? 4 : 1); ++q)
          for (int w = 1; w <= (entry.waved ? 2 : 1); ++w) {
            ScheduleOptions options = sized(p, m);
            if (entry.chunked) options.chunks = v;
            if (entry.sliced) options.slices = q;
            if (entry.waved) options.waves = w;
            legal += verified(entry, options);
          }
  EXPECT_GT(legal, 0) << entry.name;
}

TEST(Catalogue, OneChunkSchedulesAreValidOverTheGrid) {
  for (const ScheduleEntry& entry : schedules())
    if (!entry.chunked && !entry.sliced && entry.name != "v-zb")
      expect_valid_everywhere(entry, kRanks);
}

TEST(Catalogue, TheSearchOverBlocksIsValidOverTheGrid) {
  expect_valid_everywhere(find_schedule("v-zb"), {1, 2, 3, 4, 5});
}

TEST(Catalogue, LoopedSchedulesAreValidOverTheGrid) {
  for (const ScheduleEntry& entry : schedules())
    if (entry.chunked && !entry.sliced) expect_valid_everywhere(entry, kRanks);
}

TEST(Catalogue, SlicedSchedulesAreValidOverTheGrid) {
  for (const ScheduleEntry& entry : schedules())
    if (entry.sliced) expect_valid_everywhere(entry, {1, 2, 3, 4, 6, 8});
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
    EXPECT_EQ(std::string(error.what()).find("-v 2 was given, but schedule '1f1b' has no"), 0U)
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
      if (m >= 2 * p) {
        EXPECT_EQ(generate("zb-auto", sized(p, m)), h1) << p << " " << m;
      }
    }
}

TEST(Agreement, SeqPipeWithOneChunkIsSeqOneFOneB) {
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

TEST(Agreement, DualPipeIsDualPipeVOfHalfThePipePlayedFromBothEnds) {
  const Program dual = generate("dualpipe", sized(8, 24));
  const Program half = generate("dualpipe-v", sized(4, 12));

  for (std::size_t rank = 0; rank < 4; ++rank)
    for (const std::size_t twin : {rank, 7 - rank}) {
      ASSERT_EQ(dual.ranks[twin].size(), half.ranks[rank].size());
      for (std::size_t i = 0; i < half.ranks[rank].size(); ++i) {
        const Action &two = dual.ranks[twin][i], &one = half.ranks[rank][i];
        EXPECT_EQ(two.op, one.op);
        EXPECT_EQ(two.stage, one.stage);
        EXPECT_EQ(two.with_next, one.with_next);
        EXPECT_EQ(two.micro_batch.value - 12 * two.replica_number, one.micro_batch.value);
      }
    }
}

TEST(Agreement, TheStepMapOfParityIsOneFOneB) {
  const int p = 4, m = 8;
  const Program program = generate("1f1b", sized(p, m));
  for (int s = 0; s < p; ++s) {
    std::vector<Action> mapped;
    for (int step = 0; step < 2 * (m + p - 1); ++step) {
      const bool forward = step % 2 == s % 2;
      const int unit = forward ? (step - s) / 2 : (step + s + 1) / 2 - p;
      if (step < s || unit < 0 || unit >= m) continue;
      mapped.push_back({.op = forward ? Op::Forward : Op::Backward,
                        .stage = Stage{s},
                        .micro_batch = MicroBatch{unit},
                        .slice = {}});
    }
    EXPECT_EQ(program.ranks[static_cast<std::size_t>(s)], mapped) << s;
  }
}

}  // namespace
}  // namespace millrace
