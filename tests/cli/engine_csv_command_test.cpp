// millrace show --for, as typed, and the CSV with messages.
#include <gmock/gmock.h>

#include "cli/command_test.hpp"

namespace millrace::test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class EngineCsvCommand : public CommandTest {};

TEST_F(EngineCsvCommand, CsvFile_SettingsNameIt) {
  const Ran ran = command("show zb-v -p 2 -m 2 --for torchtitan --csv " + path("zb-v.csv"));

  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(ran.text,
              StartsWith("--parallelism.pipeline_parallel_degree 2\n"
                         "--parallelism.pipeline_parallel_schedule ZBVZeroBubble\n"
                         "--parallelism.pipeline_parallel_schedule_csv " +
                         path("zb-v.csv") + "\n"));
  EXPECT_EQ(command("verify " + path("zb-v.csv")).code, 0);
}

TEST_F(EngineCsvCommand, ScheduleThatDoesNotFit_IsRejected) {
  const Ran dualpipe = command("show dualpipe -p 2 -m 4 --for torch");
  EXPECT_EQ(dualpipe.code, 2);
  EXPECT_THAT(dualpipe.text,
              HasSubstr("PyTorch runs one replica of the model; nearest: dualpipe-v"));
  EXPECT_THAT(command("show wave -p 2 -m 4 --waves 2 --for automodel").text,
              HasSubstr("automodel has one stage per rank"));
  EXPECT_THAT(command("show 1f1b --comms --for torch").text, HasSubstr("leave it out with --for"));
  EXPECT_THAT(command("show 1f1b --for tourch").text, HasSubstr("did you mean torch?"));
}

TEST_F(EngineCsvCommand, MessagesInCsv_GradientsAreReduced) {
  const std::string reduced =
      "0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD\n1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD\n";

  EXPECT_EQ(command("show 1f1b -p 2 -m 1 --comms --csv").text, reduced);
  write("messages.csv", "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n");
  EXPECT_EQ(command("show " + path("messages.csv") + " --csv").text, reduced);
}

}  // namespace
}  // namespace millrace::test
