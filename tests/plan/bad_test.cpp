// One file per broken rule: its first line is the exact message, a second comment line may set the
// transport, the memory limit or the loss weights. Rule 1 cannot be broken in CSV, whose placement
// is derived from its rows: its file is a plan, and the message its name.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "millrace/scheduler/plan/text.hpp"
#include "millrace/scheduler/plan/verify.hpp"

namespace millrace {
namespace {

std::string text(const Violation& each) {
  return "rule " + std::to_string(static_cast<int>(each.rule)) + ", rank " +
         std::to_string(each.rank.value) + ", position " + std::to_string(each.position) + ": " +
         each.message;
}

/// "# rendezvous", "# fifo", "# room SOURCE DESTINATION F|B DEPTH", "# memory LIMIT", "# weights W
/// W ...".
VerifyOptions options(const std::string& line, const Program& program) {
  VerifyOptions result;
  std::istringstream in(line);
  std::string hash, word;
  in >> hash >> word;
  if (hash != "#") return result;
  if (word == "rendezvous") result.transport = Transport::rendezvous();
  if (word == "fifo") result.transport = Transport::fifo();
  if (word == "room") {
    ChannelDepth channel;
    char direction = 'F';
    in >> channel.source.value >> channel.destination.value >> direction >> channel.depth;
    channel.direction = direction == 'F' ? Direction::Forward : Direction::Backward;
    result.transport = Transport::bounded(8);
    result.transport.channels = {channel};
  }
  if (word == "memory") {
    result.cost = Cost::unit(program.shape);
    in >> result.memory_limit.emplace_back();
  }
  if (word == "weights")
    for (double weight = 0; in >> weight;) result.loss_weights.push_back(weight);
  return result;
}

/// What a bad file holds: a program, what to check it with, and the message it owes.
struct Bad {
  Program program;
  VerifyOptions options;
  std::string message;
};

Bad bad(const std::filesystem::path& path) {
  std::ifstream in(path);
  const std::string content{std::istreambuf_iterator<char>(in), {}};
  if (path.extension() == ".json") {
    ParsedPlan read = read_plan(content);
    if (!read.plan) return {{}, {}, to_string(read.diagnostics.front())};
    return {read.plan->program, {}, read.plan->program.name};
  }
  std::istringstream lines(content);
  std::string first, second;
  std::getline(lines, first);
  std::getline(lines, second);
  ParsedProgram read = read_csv(content);
  if (!read.program) return {{}, {}, to_string(read.diagnostics.front())};
  return {*read.program, options(second, *read.program), first.substr(2)};
}

/// All messages about a bad file. Rule 10 is an answer of its own, not a violation.
std::vector<std::string> messages(const Bad& bad) {
  std::vector<std::string> result;
  for (const Violation& each : verify(bad.program, bad.options)) result.push_back(text(each));
  if (!result.empty()) return result;
  const Accumulation order = accumulation(bad.program);
  if (!order.ascending)
    result.push_back("rule 10, stage " + std::to_string(order.broken->value) + ": " +
                     order.message);
  return result;
}

TEST(BadFiles, EachHasOneMessage_AllRulesCovered) {
  std::set<int> rules;
  const std::filesystem::path folder = MILLRACE_SOURCE_DIR "/tests/bad";
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    const Bad it = bad(file.path());

    EXPECT_EQ(messages(it), std::vector<std::string>{it.message}) << file.path();
    int rule = 0;
    EXPECT_EQ(std::sscanf(it.message.c_str(), "rule %d,", &rule), 1) << file.path();
    rules.insert(rule);
  }
  EXPECT_EQ(rules, (std::set<int>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
}

}  // namespace
}  // namespace millrace
