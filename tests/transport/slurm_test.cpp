// What srun sets for its tasks: the first of its nodes, a port and a folder that no other step has.
#include "transport/slurm.hpp"

#include <gtest/gtest.h>

#include "millrace/transport/launch.hpp"

namespace millrace {
namespace {

Variables task() {
  return {{"SLURM_PROCID", "2"},
          {"SLURM_NTASKS", "4"},
          {"SLURM_JOB_ID", "1234"},
          {"SLURM_STEP_ID", "3"},
          {"SLURM_JOB_NODELIST", "n[1-2]"},
          {"SLURM_SUBMIT_DIR", "/home/someone"}};
}

TEST(Slurm, EveryListForm_NamesTheFirstNode) {
  EXPECT_EQ(first_node("n1"), "n1");
  EXPECT_EQ(first_node("n1,n2"), "n1");
  EXPECT_EQ(first_node("n[1-2,7]"), "n1");
  EXPECT_EQ(first_node("n[7,9]"), "n7");
  EXPECT_EQ(first_node("n[001-128]"), "n001");
  EXPECT_EQ(first_node("rack[1-2]n[08-11],login"), "rack1n08");
  EXPECT_EQ(first_node("gpu-a-[3-4]"), "gpu-a-3");
  EXPECT_EQ(first_node("n[1-2]-ib"), "n1-ib");
}

TEST(Slurm, TellsATaskEnoughToMeet) {
  const LaunchConfig place = launch_config(task());
  EXPECT_EQ(place.member.rank, Rank{2});
  EXPECT_EQ(place.member.world, 4);
  EXPECT_EQ(place.rendezvous, "tcp://n1:29747");  // 20000 + (16 * 1234 + 3) % 10000
  EXPECT_EQ(place.shared, "/home/someone/.millrace-1234-0-3");
  EXPECT_EQ(place.interface, "auto");
}

TEST(Slurm, EveryStepAndRestart_HasOwnFolder) {
  const LaunchConfig first = launch_config(task());
  for (const auto& [name, value] :
       {std::pair{"SLURM_STEP_ID", "4"}, {"SLURM_JOB_ID", "1235"}, {"SLURM_RESTART_COUNT", "1"}}) {
    Variables other = task();
    other[name] = value;
    const LaunchConfig place = launch_config(other);
    EXPECT_NE(place.shared, first.shared) << name;
    EXPECT_NE(place.member.job, first.member.job) << name;
  }
}

TEST(Slurm, IsNotAskedWhereAMeetingPlaceWasSaid) {
  Variables variables = task();
  variables["MILLRACE_RENDEZVOUS"] = "tcp://elsewhere:9";
  const LaunchConfig place = launch_config(variables);
  EXPECT_EQ(place.rendezvous, "tcp://elsewhere:9");
  EXPECT_EQ(place.shared, "");
}

TEST(Slurm, CountsInsideAStepOfSrunAlone) {
  Variables variables = task();
  EXPECT_TRUE(in_slurm_step(variables));
  for (const char* step : {"4294967291", "4294967280", "", "none"}) {
    variables["SLURM_STEP_ID"] = step;
    EXPECT_FALSE(in_slurm_step(variables)) << step;
    EXPECT_FALSE(slurm_step(variables).has_value()) << step;
  }
}

}  // namespace
}  // namespace millrace
