// A step that fails among processes over which the optimizer's state is spread: what they have of
// it comes together without a word between them, or the state is not saved.
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/test_options.hpp"
#include "tests/training/failing_ranks.hpp"
#include "tests/training/sample_files.hpp"

namespace millrace {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing_files::Folder;
using testing_training::End;
using testing_training::fail_on_ranks;
using testing_training::Fault;
using testing_training::FaultyFiles;
using testing_training::files_in;
using testing_training::first_digits;
using testing_training::fit_steps;
using testing_training::is_pass;
using testing_training::kSavedPlace;
using testing_training::kStep;
using testing_training::Message;
using testing_training::names_in;
using testing_training::Part;
using testing_training::saved_options;
using testing_training::spoil_where;
using testing_training::weights_resumed;

/// Blocks of the norm of one parameter that both copies move, and parameters that one of them does.
ModelSpec spread_model(DType precision) {
  ModelSpec model = parse_model("mlp:64-200-40-10");
  model.precision = precision;
  return model;
}
constexpr int kSpreadCopies = 2, kSpreadPlaces = 2;

TestOptions spread_options(const std::string& folder, int copies, int places) {
  TestOptions options = saved_options(folder, places);
  options.pipeline.shape.micro_batches = 4 / copies;
  options.step.accumulate_order = AccumulateOrder::Tree;
  options.step.shard_optimizer = copies > 1;
  return options;
}

/// Of two copies of two places; the last place of the second copy fails in a backward pass.
Part spread_part(const std::string& folder, DType precision, int rank) {
  Part part{spread_options(folder, kSpreadCopies, kSpreadPlaces)};
  part.model = spread_model(precision);
  part.copies = kSpreadCopies;
  if (rank == 3)
    part.spoil =
        spoil_where([](const Message& m) { return m.is_sent && is_pass(m, Direction::Backward); });
  return part;
}

TEST(FailedShards, GatherInOneProcessesFiles) {
  for (const DType precision : {DType::F32, DType::BF16}) {
    const Folder folder("failed_shards");
    const std::string alone = folder.path() + "/alone", saved = folder.path() + "/saved";
    Trainer trainer = trainer_of(spread_model(precision), spread_options(alone, 1, 1));
    fit_steps(trainer, first_digits(60), kStep);
    const auto ends = fail_on_ranks(kSpreadCopies * kSpreadPlaces,
                                    [&](int rank) { return spread_part(saved, precision, rank); });
    for (const End& end : ends) {
      EXPECT_THAT(end.failure, HasSubstr("gave way"));
      EXPECT_EQ(end.last().fault, "");
      EXPECT_EQ(end.last().folder, saved + kSavedPlace);
    }
    EXPECT_EQ(files_in(saved + kSavedPlace), files_in(alone + kSavedPlace));
    EXPECT_EQ(weights_resumed(spread_options(saved, 1, 2), spread_model(precision)),
              weights_resumed(spread_options(alone, 1, 1), spread_model(precision)));
  }
}

/// The disk of the second copy's first place is full.
TEST(FailedShards, AreNotSavedWithoutThoseOfACopy) {
  const Folder folder("failed_shards_lack");
  const auto ends = fail_on_ranks(kSpreadCopies * kSpreadPlaces, [&](int rank) {
    Part part = spread_part(folder.path(), DType::F32, rank);
    if (rank == 2) part.options.save.files = std::make_shared<FaultyFiles>(Fault::NoSpace, 1);
    return part;
  });
  EXPECT_THAT(ends[0].last().fault, HasSubstr("rank 0: it has no share of rank 2: "));
  for (const End& end : ends) EXPECT_EQ(end.last().folder, "");
  EXPECT_THAT(names_in(folder.path()), IsEmpty());
}

}  // namespace
}  // namespace millrace
