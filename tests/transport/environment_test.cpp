// Identity: what engines say in their variables, and that two sources which disagree are refused.
#include "millrace/transport/environment.hpp"

#include <vector>

#include <gtest/gtest.h>

#include "millrace/core/error.hpp"

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

TEST(Environment, TwoSourcesThatAgreeAreFineAndTwoThatDisagreeAreRefused) {
  Variables variables = {
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"SLURM_PROCID", "1"}, {"SLURM_STEP_ID", "7"}};
  EXPECT_EQ(find_identity({.rank = 1, .world = 2}, variables).rank, 1);

  variables["SLURM_PROCID"] = "0";
  try {
    (void)find_identity({}, variables);
    FAIL() << "two ranks at once";
  } catch (const Mismatch& error) {
    EXPECT_STREQ(error.what(), "the rank is 0 by SLURM_PROCID, but 1 by RANK");
  }
  EXPECT_THROW((void)find_identity({.world = 3}, {{"WORLD_SIZE", "2"}}), Mismatch);
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
  variables["SLURM_STEP_ID"] = "0";
  EXPECT_THROW((void)find_identity({}, variables), Mismatch);
}

TEST(Environment, TellsMpirunFromOtherEngines) {
  EXPECT_TRUE(started_by_mpirun({{"OMPI_COMM_WORLD_SIZE", "4"}}));
  EXPECT_TRUE(started_by_mpirun({{"PMI_SIZE", "4"}}));
  EXPECT_FALSE(started_by_mpirun({{"PMI_SIZE", "4"}, {"SLURM_STEP_ID", "0"}}));
  EXPECT_FALSE(started_by_mpirun({{"RANK", "2"}, {"WORLD_SIZE", "4"}}));
}

TEST(Environment, NonsenseIsRefusedWithItsName) {
  EXPECT_THROW((void)find_identity({}, {{"RANK", "x"}}), InvalidArgument);
  EXPECT_THROW((void)find_identity({}, {{"RANK", "-1"}}), InvalidArgument);
  EXPECT_THROW((void)find_identity({}, {{"RANK", "2"}, {"WORLD_SIZE", "2"}}), InvalidArgument);
  EXPECT_EQ(find_identity({}, {}).rank, std::nullopt);
  EXPECT_EQ(find_identity({}, {{"MASTER_ADDR", "h"}, {"MASTER_PORT", "9"}}).rendezvous,
            "tcp://h:9");
}

}  // namespace
}  // namespace millrace
