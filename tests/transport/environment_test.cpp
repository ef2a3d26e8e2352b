// Identity: what engines say in their variables, and that two sources which disagree are refused.
#include <vector>

#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/transport/launch.hpp"

namespace millrace {
namespace {

TEST(Environment, EveryEngineIsUnderstood) {
  const std::vector<Variables> engines = {
      {{"MILLRACE_RANK", "2"}, {"MILLRACE_WORLD", "4"}},
      {{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}},
      {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}},
      {{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}, {"SLURM_STEP_ID", "0"}},
      {{"RANK", "2"}, {"WORLD_SIZE", "4"}},
      {{"JOB_COMPLETION_INDEX", "2"}, {"MILLRACE_WORLD", "4"}}};
  for (const Variables& variables : engines) {
    const Identity identity = find_identity({}, variables);
    EXPECT_EQ(identity.rank, 2) << variables.begin()->first;
    EXPECT_EQ(identity.world, 4) << variables.begin()->first;
  }
}

TEST(Environment, DisagreeingSources_AreRejected) {
  Variables variables = {
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"SLURM_PROCID", "1"}, {"SLURM_STEP_ID", "7"}};
  EXPECT_EQ(find_identity({}, variables).rank, 1);

  variables["SLURM_PROCID"] = "0";
  try {
    (void)find_identity({}, variables);
    FAIL() << "two ranks at once";
  } catch (const Mismatch& error) {
    EXPECT_STREQ(error.what(),
                 "the rank is 0 by SLURM_PROCID, but 1 by RANK; RANK=1 is set in this shell: unset "
                 "the one of the two that does not belong to this job, or type the rank for "
                 "millrace worker");
  }
}

TEST(Environment, TypedRank_CountsBeforeVariables) {
  const Variables variables = {{"SLURM_PROCID", "0"},
                               {"SLURM_NTASKS", "1"},
                               {"SLURM_STEP_ID", "0"},
                               {"WORLD_SIZE", "8"},
                               {"RANK", "7"}};
  const Identity identity = find_identity({.rank = 1, .world = 2}, variables);
  EXPECT_EQ(identity.rank, 1);
  EXPECT_EQ(identity.world, 2);
  EXPECT_EQ(identity.source, "the command line");
  EXPECT_THROW((void)find_identity({.rank = 1}, variables), Mismatch);  // of the world
}

TEST(Environment, LaunchersInsideEachOther_InnermostCounts) {
  const Variables step = {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_STEP_ID", "0"}};
  const Variables pod = {{"JOB_COMPLETION_INDEX", "0"}};
  const Variables mpirun = {{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}};
  const Variables hydra = {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}};
  const auto expect = [](int rank, int world, Variables inner, const Variables& outer) {
    inner.insert(outer.begin(), outer.end());
    EXPECT_EQ(find_identity({}, inner).rank, rank);
    EXPECT_EQ(find_identity({}, inner).world, world);
  };
  for (const char* mark : {"LOCAL_RANK", "TORCHELASTIC_RUN_ID"}) {
    const Variables torchrun = {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {mark, "1"}};
    for (const Variables& outer : {step, pod, mpirun, hydra}) expect(1, 2, torchrun, outer);
  }
  for (const Variables& outer : {step, pod}) {
    expect(3, 4, mpirun, outer);
    expect(3, 4, hydra, outer);
  }
  Variables words = {{"MILLRACE_RANK", "2"}, {"RANK", "1"}, {"LOCAL_RANK", "1"}};
  EXPECT_THROW((void)find_identity({}, words), Mismatch);  // a person's words count always
}

TEST(Environment, ABatchScriptOfSlurmIsNoRankOfIt) {
  Variables variables = {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}};
  EXPECT_EQ(find_identity({}, variables).rank, std::nullopt);
  variables.insert({{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}});
  for (const char* step : {"", "4294967291", "4294967290", "none"}) {
    if (*step != '\0') variables["SLURM_STEP_ID"] = step;
    EXPECT_EQ(find_identity({}, variables).rank, 3) << step;
    EXPECT_EQ(find_identity({}, variables).world, 4) << step;
  }
}

TEST(Environment, TellsMpirunFromOtherEngines) {
  EXPECT_TRUE(started_by_mpirun({{"OMPI_COMM_WORLD_SIZE", "4"}}));
  EXPECT_TRUE(started_by_mpirun({{"PMI_SIZE", "4"}}));
  EXPECT_FALSE(started_by_mpirun({{"PMI_SIZE", "4"}, {"SLURM_STEP_ID", "0"}}));
  EXPECT_FALSE(started_by_mpirun({{"RANK", "2"}, {"WORLD_SIZE", "4"}}));
  EXPECT_FALSE(
      started_by_mpirun({{"OMPI_COMM_WORLD_SIZE", "4"}, {"RANK", "2"}, {"LOCAL_RANK", "0"}}));
}

TEST(Environment, NonsenseIsRefusedWithItsName) {
  EXPECT_THROW((void)find_identity({}, {{"RANK", "x"}}), InvalidArgument);
  EXPECT_THROW((void)find_identity({}, {{"RANK", "-1"}}), InvalidArgument);
  try {
    (void)find_identity({.rank = 2}, {{"WORLD_SIZE", "2"}});
    FAIL() << "rank 2 of 2";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "rank 2 by the command line is outside a world of 2 by WORLD_SIZE");
  }
  EXPECT_EQ(find_identity({}, {}).rank, std::nullopt);
  EXPECT_EQ(find_identity({}, {{"MASTER_ADDR", "h"}, {"MASTER_PORT", "9"}}).rendezvous,
            "tcp://h:9");
}

}  // namespace
}  // namespace millrace
