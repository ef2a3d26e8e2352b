// The arithmetic of the effective batch, against its own product and the cut that the loader makes.
#include <algorithm>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/training/learning_rate.hpp"
#include "millrace/training/loader.hpp"

namespace millrace {
namespace {

using testing::HasSubstr;

TEST(EffectiveBatch, IsReportedWithMicroBatchSizes) {
  EXPECT_EQ(to_string(EffectiveBatch{.samples = 128, .micro_batches = 8}),
            "128 samples per update: 8 micro-batches of 16");
  EXPECT_EQ(to_string(EffectiveBatch{.samples = 1}), "1 sample per update: 1 micro-batch of 1");
  EXPECT_EQ(to_string(EffectiveBatch{.samples = 3, .micro_batches = 8}),
            "3 samples per update: 8 micro-batches, 3 of 1 and 5 of 0");
  EXPECT_EQ(to_string(EffectiveBatch{512, 2, 4, 8}),
            "512 samples per update: 2 copies x 4 passes x 8 micro-batches of 8");
  EXPECT_EQ(to_string(EffectiveBatch{100, 2, 1, 8}),
            "100 samples per update: 2 copies x 8 micro-batches, 4 of 7 and 12 of 6");
}

TEST(EffectiveBatch, IsToldAsTheMiniBatchIsCut) {
  for (std::int64_t n = 1; n < 40; ++n)
    for (int m = 1; m < 12; ++m) {
      std::map<std::int64_t, int> count;
      for (const std::int64_t size : micro_batch_sizes(n, m)) ++count[size];
      std::string sizes;
      if (count.size() == 1) sizes = " of " + std::to_string(count.begin()->first);
      if (count.size() == 2)
        sizes = ", " + std::to_string(count.rbegin()->second) + " of " +
                std::to_string(count.rbegin()->first) + " and " +
                std::to_string(count.begin()->second) + " of " +
                std::to_string(count.begin()->first);
      const std::string told = to_string(EffectiveBatch{.samples = n, .micro_batches = m});
      EXPECT_TRUE(told.ends_with(sizes)) << told << " for" << sizes;
    }
}

/// What require_exact says; empty: it fits.
std::string refusal(const EffectiveBatch& batch, std::int64_t size) {
  try {
    require_exact(batch, size);
  } catch (const InvalidParameter& error) {
    return parameter_text(error).text();
  }
  return "";
}

TEST(EffectiveBatch, FitsExactlyWhenItIsTheProduct) {
  for (std::int64_t copies = 1; copies < 4; ++copies)
    for (std::int64_t passes = 1; passes < 4; ++passes)
      for (std::int64_t micro_batches = 1; micro_batches < 5; ++micro_batches)
        for (std::int64_t size = 1; size < 5; ++size)
          for (std::int64_t samples = 1; samples < 100; ++samples) {
            const EffectiveBatch batch{samples, copies, passes, micro_batches};
            const std::int64_t product = copies * passes * micro_batches * size;
            EXPECT_EQ(samples_of(batch, size), product);
            EXPECT_EQ(refusal(batch, size).empty(), samples == product);
          }
}

TEST(EffectiveBatch, Indivisible_NamesTheNearest) {
  EXPECT_EQ(refusal({.samples = 100, .micro_batches = 8}, 16),
            "100 samples per update are not 8 micro-batches of 16, which are 128; the nearest that "
            "fit are 96 with micro_batches 6 and 112 with micro_batches 7");
  EXPECT_EQ(refusal({.samples = 256, .micro_batches = 8}, 16),
            "256 samples per update are not 8 micro-batches of 16, which are 128; they fit with "
            "micro_batches 16");
  EXPECT_EQ(refusal({.samples = 7, .copies = 2, .micro_batches = 8}, 16),
            "7 samples per update are not 2 copies x 8 micro-batches of 16, which are 256; the "
            "nearest that fits is 32 with micro_batches 1");
  EXPECT_EQ(refusal({90, 2, 3, 4}, 5),
            "90 samples per update are not 2 copies x 3 passes x 4 micro-batches of 5, which are "
            "120; they fit with micro_batches 3");
}

TEST(EffectiveBatch, RefusesNumbersThatCannotBe) {
  EXPECT_THROW((void)to_string(EffectiveBatch{}), InvalidArgument);
  EXPECT_THROW((void)to_string(EffectiveBatch{.samples = 1, .copies = 0}), InvalidArgument);
  EXPECT_THROW((void)samples_of({.samples = 1}, 0), InvalidArgument);
  EXPECT_THROW((void)samples_of({1, 40'000, 40'000, 40'000}, 40'000), InvalidArgument);
}

}  // namespace
}  // namespace millrace
