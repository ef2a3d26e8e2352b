// Numbers that travel from a command line to other processes arrive as they were typed, to the last
// digit: what launch hands to its workers, and what workers tell each other.
#include <algorithm>
#include <array>
#include <thread>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "cli/launched.hpp"
#include "millrace/transport/private_directory.hpp"

namespace millrace {
namespace {

using test::Command;
using test::Outcome;
using test::run;
using test::temporary;
using test::worker;
using testing::HasSubstr;

/// The variables of a launched rank, once it has become one.
std::string variables_of(pid_t process) {
  const auto deadline = test::Clock::now() + std::chrono::seconds(20);
  std::string text;
  while (text.find("MILLRACE_RANK=") == std::string::npos && test::Clock::now() < deadline) {
    std::this_thread::yield();
    text = test::text_of("/proc/" + std::to_string(process) + "/environ");
    std::replace(text.begin(), text.end(), '\0', '\n');
  }
  return text;
}

TEST(ExactNumbers, TimesOfALaunchReachEveryWorker) {
  Command command(
      "launch -n 2 --heartbeat-timeout 12.345 --action-timeout 99.001 --join-timeout 33.333 "
      "-- train --steps 1000000 --model mlp:64-8-8-10");
  for (const pid_t process : command.workers(2)) {
    const std::string variables = variables_of(process);
    EXPECT_THAT(variables, HasSubstr("MILLRACE_HEARTBEAT_TIMEOUT=12.345\n"));
    EXPECT_THAT(variables, HasSubstr("MILLRACE_ACTION_TIMEOUT=99.001\n"));
    EXPECT_THAT(variables, HasSubstr("MILLRACE_JOIN_TIMEOUT=33.333\n"));
  }
  command.signal(SIGTERM);
  EXPECT_EQ(command.end().code, 143);
}

/// What two workers say of a field in which one of them has another number.
std::string difference(const std::string& flag, const std::string& number) {
  const std::string job = "train --steps 9 --model mlp:64-8-8-10 ";
  const PrivateDirectory place(temporary());
  Command other(worker(place, 1, 2, job));
  const Outcome outcome = run(worker(place, 0, 2, job + flag + " " + number));
  EXPECT_EQ(outcome.code, 78) << outcome.errors;
  EXPECT_EQ(other.end().code, 78);
  return outcome.errors;
}

TEST(ExactNumbers, WhatWorkersCompareHasEveryDigit) {
  EXPECT_THAT(difference("--dropout", "0.12345678"), HasSubstr("dropout=0.12345678'"));
  EXPECT_THAT(difference("--lr", "0.0012345678901234567"), HasSubstr("'0.0012345678901234567'"));
  EXPECT_THAT(difference("--weight-decay", "0.1000000000000001"),
              HasSubstr("'0.1000000000000001'"));
  EXPECT_THAT(difference("--clip-norm", "1.000000000000001"), HasSubstr("'1.000000000000001'"));
}

TEST(ExactNumbers, Dropout_SameBitsInEveryProcess) {
  const std::string job =
      "train --json --steps 3 -m 4 -p 2 --batch-size 64 --lr 0.00123456789 --model mlp:64-96-10";
  const auto hash = [](const std::string& line) {
    const Outcome outcome = run(line);
    EXPECT_EQ(outcome.code, 0) << outcome.errors;
    return nlohmann::json::parse(outcome.output).at("weights_hash").get<std::string>();
  };
  const std::string typed = hash(job + " --dropout 0.12345678");
  EXPECT_EQ(hash(job + ",dropout=0.12345678"), typed);
  EXPECT_EQ(hash("launch -n 2 -- " + job + " --dropout 0.12345678"), typed);
  EXPECT_NE(hash(job + ",dropout=0.123457"), typed);  // as six digits would have it
}

}  // namespace
}  // namespace millrace
