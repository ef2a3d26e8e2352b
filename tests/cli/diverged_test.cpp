// A training that skips every step does not end as if it had learnt: one sentence and code 1, in
// one process and in many.
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
  const Outcome outcome = run(std::string(kDiverging) + "--stages 2");

  EXPECT_EQ(outcome.code, 1) << outcome.errors;
  EXPECT_THAT(outcome.errors,
              HasSubstr(std::string("millrace: training diverged: the gradient was not finite in "
                                    "25") +
                        kSentence));
  EXPECT_THAT(outcome.output, Not(HasSubstr("weights")));
}

TEST(Diverged, TrainingGoesOnAsLongAsItIsAllowedTo) {
  const Outcome enough = run(std::string(kDiverging) + "--stages 2 --max-skipped 60");
  EXPECT_EQ(enough.code, 0) << enough.errors;
  const Outcome few = run(std::string(kDiverging) + "--stages 2 --max-skipped 7");
  EXPECT_EQ(few.code, 1);
  EXPECT_THAT(few.errors, HasSubstr(std::string("7") + kSentence));
  const Outcome none = run(std::string(kDiverging) + "--stages 2 --max-skipped 0");
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.errors, HasSubstr("--max-skipped 0: must be from 1 to"));
}

TEST(Diverged, LaunchedRanksAllEndSoAndNobodyIsLost) {
  const Outcome outcome = run(std::string("launch -n 3 -- ") + kDiverging + "--max-skipped 5");

  EXPECT_EQ(outcome.code, 1) << outcome.errors;
  EXPECT_THAT(outcome.errors, HasSubstr(std::string("5") + kSentence));
  EXPECT_THAT(outcome.errors, Not(HasSubstr("lost")));
}

}  // namespace
}  // namespace millrace
