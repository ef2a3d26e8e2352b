// Workers that an engine starts again in the directory where others ended, or still live.
#include <array>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>

#include "cli/launched.hpp"
#include "millrace/transport/private_directory.hpp"

namespace millrace {
namespace {

using test::Command;
using test::Outcome;
using test::run;
using test::temporary;
using testing::HasSubstr;

/// One of two that train so many steps.
std::string worker(const PrivateDirectory& place, int rank, const std::string& steps) {
  return test::worker(place, rank, 2, "train --json --model mlp:64-8-8-10 --steps " + steps);
}

/// Waits until both ranks have a file each, which they have before they meet.
void await_files(const PrivateDirectory& place) {
  const auto deadline = test::Clock::now() + std::chrono::seconds(20);
  while (!(std::filesystem::exists(place.path() + "/r0.0.progress") &&
           std::filesystem::exists(place.path() + "/r1.0.progress")) &&
         test::Clock::now() < deadline)
    std::this_thread::yield();
}

TEST(Requeue, WorkersStartAgainWhereTheirPredecessorsWereKilled) {
  const PrivateDirectory place(temporary());
  const std::string for_ever = "1000000";
  for (int round = 0; round < 3; ++round) {
    std::array workers = {Command(worker(place, 0, for_ever)), Command(worker(place, 1, for_ever))};
    await_files(place);
    if (round > 0) workers[0].await_training();
    for (Command& worker : workers) worker.kill();
    EXPECT_TRUE(std::filesystem::exists(place.path() + "/r0.0.progress"));
  }
  Command other(worker(place, 1, "3"));
  const Outcome outcome = run(worker(place, 0, "3"));

  EXPECT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_EQ(other.end().code, 0);
  EXPECT_TRUE(std::filesystem::is_empty(place.path()));
}

TEST(Requeue, ARankThatLivesIsNotTakenOver) {
  const PrivateDirectory place(temporary());
  Command first(worker(place, 0, "3"));
  while (!std::filesystem::exists(place.path() + "/rendezvous")) std::this_thread::yield();

  const Outcome twin = run(worker(place, 0, "3"));

  EXPECT_EQ(twin.code, 1) << twin.errors;
  EXPECT_THAT(twin.errors,
              HasSubstr("cannot make " + place.path() +
                        "/r0.0.progress: two processes have this rank: process "));
  const Outcome other = run(worker(place, 1, "3"));
  EXPECT_EQ(other.code, 0) << other.errors;
  EXPECT_EQ(first.end().code, 0);
}

}  // namespace
}  // namespace millrace
