// A training that cannot learn does not end as if it had: it skips every step (one sentence and
// code 1, in one process and in many), or its batch norms see one value a channel.
#include <gmock/gmock.h>

#include "cli/launched.hpp"

namespace millrace {
namespace {

using test::Outcome;
using test::run;
using testing::HasSubstr;
using testing::Not;

/// The first update throws the weights so far that no later gradient is finite.
constexpr const char* kDiverging =
    "train --model mlp:64-24-20-16-10 --micro-batches 4 --batch-size 64 --steps 60 "
    "--optimizer sgd --lr 1e30 --lr-schedule constant --warmup 0 ";
constexpr const char* kSentence =
    " steps in a row, each of them skipped, after 1 update; --max-skipped allows no more\n";

TEST(Diverged, EndsTrainingWithASentenceAndCodeOne) {
  const Outcome outcome = run(std::string(kDiverging) + "--ranks 2");

  EXPECT_EQ(outcome.code, 1) << outcome.errors;
  EXPECT_THAT(outcome.errors,
              HasSubstr(std::string("millrace: training diverged: the gradient was not finite in "
                                    "25") +
                        kSentence));
  EXPECT_THAT(outcome.output, Not(HasSubstr("weights")));
}

TEST(Diverged, Training_ContinuesUntilTheLimit) {
  const Outcome enough = run(std::string(kDiverging) + "--ranks 2 --max-skipped 60");
  EXPECT_EQ(enough.code, 0) << enough.errors;
  const Outcome few = run(std::string(kDiverging) + "--ranks 2 --max-skipped 7");
  EXPECT_EQ(few.code, 1);
  EXPECT_THAT(few.errors, HasSubstr(std::string("7") + kSentence));
  const Outcome none = run(std::string(kDiverging) + "--ranks 2 --max-skipped 0");
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.errors, HasSubstr("--max-skipped 0: must be from 1 to"));
}

TEST(Diverged, LaunchedRanksAllEndSoAndNobodyIsLost) {
  const Outcome outcome = run(std::string("launch -n 3 -- ") + kDiverging + "--max-skipped 5");

  EXPECT_EQ(outcome.code, 1) << outcome.errors;
  EXPECT_THAT(outcome.errors, HasSubstr(std::string("5") + kSentence));
  EXPECT_THAT(outcome.errors, Not(HasSubstr("lost")));
}

TEST(BatchNormOverOneValue, Train_RejectsOrWarns) {
  const std::string model =
      "train --model mlp:64-32-10,norm=batch -p 2 -m 32 --steps 2 --batch-size ";
  const Outcome all = run(model + "32");
  EXPECT_EQ(all.code, 2);
  EXPECT_THAT(all.errors,
              HasSubstr("-m: 32 samples in 32 micro-batches give batch norm one value a channel"));
  const Outcome some = run(model + "40");
  EXPECT_EQ(some.code, 0) << some.errors;
  EXPECT_THAT(some.output,
              HasSubstr("warning: batch norm sees one value a channel in 24 of the 32"));
}

}  // namespace
}  // namespace millrace
