// A place in variables: what a launcher says is what a program reads, and nothing is guessed.
#include <gmock/gmock.h>

#include "millrace/core/error.hpp"
#include "millrace/transport/launch.hpp"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Key;
using testing::Not;
using testing::StrEq;
using testing::ThrowsMessage;

LaunchConfig some_place() {
  LaunchConfig place;
  place.member = {.rank = Rank{2}, .world = 5, .job = 18'000'000'000'000'000'000U};
  place.rendezvous = "ipc:///tmp/place/rendezvous";
  place.backend = Backend::Ipc;
  place.interface = "10.0.0.1";
  place.keys = "/tmp/keys";
  place.keys_descriptor = 9;
  place.insecure = true;
  place.core_dumps = true;
  place.heartbeat_timeout = 1500ms;
  place.join_timeout = 7001ms;
  place.action_timeout = 20ms;
  place.directory = "/tmp/place";
  place.log_directory = "/tmp/logs";
  place.attempt = 3;
  place.began = 1.75e9;
  return place;
}

TEST(LaunchConfig, ComesBackOutOfItsVariables) {
  const LaunchConfig place = some_place(), read = launch_config(launch_variables(place));

  EXPECT_EQ(read.member.rank, place.member.rank);
  EXPECT_EQ(read.member.world, place.member.world);
  EXPECT_EQ(read.member.job, place.member.job);
  EXPECT_EQ(read.rendezvous, place.rendezvous);
  EXPECT_EQ(read.backend, place.backend);
  EXPECT_EQ(read.interface, place.interface);
  EXPECT_EQ(read.keys, place.keys);
  EXPECT_EQ(read.keys_descriptor, place.keys_descriptor);
  EXPECT_EQ(read.insecure, place.insecure);
  EXPECT_EQ(read.core_dumps, place.core_dumps);
  EXPECT_EQ(read.heartbeat_timeout, place.heartbeat_timeout);
  EXPECT_EQ(read.join_timeout, place.join_timeout);
  EXPECT_EQ(read.action_timeout, place.action_timeout);
  EXPECT_EQ(read.directory, place.directory);
  EXPECT_EQ(read.log_directory, place.log_directory);
  EXPECT_EQ(read.attempt, place.attempt);
  EXPECT_EQ(read.began, place.began);
  EXPECT_EQ(read.failure_notice(), "/tmp/place/failure_notice");
  EXPECT_EQ(read.joined_mark(), "/tmp/place/joined-2");
}

TEST(LaunchConfig, NamesEveryVariableThatItWrites) {
  const auto names = launch_variable_names();

  for (const auto& [name, value] : launch_variables(some_place()))
    EXPECT_THAT(names, Contains(name));
  EXPECT_EQ(launch_variables(some_place()).size(), names.size());
  EXPECT_THAT(
      launch_variables({}),
      AllOf(Not(Contains(Key("MILLRACE_KEYS_FD"))), Not(Contains(Key("MILLRACE_ACTION_TIMEOUT")))));
}

TEST(LaunchConfig, OfAProcessThatNobodyStartedIsAlone) {
  const LaunchConfig place = launch_config({{"PATH", "/bin"}});

  EXPECT_EQ(place.member.rank, Rank{0});
  EXPECT_EQ(place.member.world, 1);
  EXPECT_EQ(place.rendezvous, "");
  EXPECT_EQ(place.joined_mark(), "");
}

TEST(LaunchConfig, IsSaidByEnginesToo) {
  const LaunchConfig place = launch_config({{"OMPI_COMM_WORLD_RANK", "1"},
                                            {"OMPI_COMM_WORLD_SIZE", "3"},
                                            {"MILLRACE_RENDEZVOUS", "tcp://10.0.0.1:4000"}});

  EXPECT_EQ(place.member.rank, Rank{1});
  EXPECT_EQ(place.member.world, 3);
  EXPECT_EQ(place.rendezvous, "tcp://10.0.0.1:4000");
}

TEST(LaunchConfig, PartialOrWrong_NamesTheVariable) {
  const auto refusal = [](Variables variables) {
    return [variables = std::move(variables)] { static_cast<void>(launch_config(variables)); };
  };
  const Variables pair = {{"MILLRACE_RANK", "0"}, {"MILLRACE_WORLD", "2"}};
  EXPECT_THAT(refusal({{"JOB_COMPLETION_INDEX", "1"}}),
              ThrowsMessage<InvalidArgument>(
                  StrEq("MILLRACE_WORLD is not set, but this is rank 1 by JOB_COMPLETION_INDEX")));
  EXPECT_THAT(refusal({{"MILLRACE_WORLD", "2"}}),
              ThrowsMessage<InvalidArgument>(
                  StrEq("the number of ranks is 2 by MILLRACE_WORLD, but no rank is set; unset "
                        "MILLRACE_WORLD, or set MILLRACE_RANK")));
  EXPECT_THAT(refusal(pair),
              ThrowsMessage<InvalidArgument>(
                  StrEq("MILLRACE_RENDEZVOUS is not set, but there are 2 ranks, which must meet")));
  EXPECT_THAT(refusal({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}}),
              ThrowsMessage<InvalidArgument>(HasSubstr(
                  "must meet; those of mpirun meet by MPI in a build with the component mpi")));
  for (const auto& [name, value, message] :
       {std::tuple{"MILLRACE_INSECURE", "yes", "MILLRACE_INSECURE is 'yes'; it is 0 or 1"},
        std::tuple{"MILLRACE_JOIN_TIMEOUT",
                   "0",
                   "MILLRACE_JOIN_TIMEOUT is '0'; it is from 0.001 to 1000000 seconds"},
        std::tuple{
            "MILLRACE_ACTION_TIMEOUT", "soon", "MILLRACE_ACTION_TIMEOUT is 'soon', not a number"},
        std::tuple{"MILLRACE_KEYS_FD", "3x", "MILLRACE_KEYS_FD is '3x', not a number"}})
    EXPECT_THAT(refusal({{name, value}}), ThrowsMessage<InvalidArgument>(StrEq(message)));
}

TEST(LaunchConfig, Mpi_NeedsNoRendezvousAddress) {
  Variables variables = {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}};
  EXPECT_THROW((void)launch_config(variables), InvalidArgument);
  variables["MILLRACE_ENDPOINT"] = "mpi";
  const LaunchConfig place = launch_config(variables);
  EXPECT_EQ(place.backend, Backend::Mpi);
  EXPECT_EQ(place.member.rank, Rank{1});
  EXPECT_EQ(place.member.world, 4);
}

TEST(LaunchConfig, Endpoint_IsThatAskedForElseTheLaunchers) {
  EXPECT_EQ(chosen_backend("auto", {{"RANK", "1"}, {"WORLD_SIZE", "2"}}), Backend::Mixed);
  EXPECT_EQ(chosen_backend("tcp", {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}), Backend::Tcp);
  EXPECT_EQ(chosen_backend("auto", {{"MILLRACE_RENDEZVOUS", "ipc:///a/b"}}), Backend::SharedMemory);
  EXPECT_EQ(chosen_backend("auto", {{"MILLRACE_RENDEZVOUS", "tcp://a:1"}}), Backend::Mixed);
  EXPECT_EQ(chosen_backend("ipc", {{"MILLRACE_RENDEZVOUS", "ipc:///a/b"}}), Backend::Ipc);
  EXPECT_THROW((void)chosen_backend("smoke", {}), InvalidArgument);
}

}  // namespace
}  // namespace millrace
