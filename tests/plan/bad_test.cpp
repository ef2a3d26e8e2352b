// One file per broken rule: its first line is the exact message, a second comment line may set the
// transport, the memory limit or the loss weights. Rule 1 cannot be broken in CSV, whose placement
// is derived from its rows; verify_test.cpp breaks it.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include <gtest/gtest.h>

#include "millrace/scheduler/plan/text.hpp"
#include "millrace/scheduler/plan/verify.hpp"

namespace millrace {
namespace {

std::string text(const Violation& each) {
  return "rule " + std::to_string(static_cast<int>(each.rule)) + ", rank " +
         std::to_string(each.rank.value) + ", position " + std::to_string(each.position) + ": " +
         each.sentence;
}

/// "# rendezvous", "# room SOURCE DESTINATION F|B DEPTH", "# memory LIMIT", "# weights W W ...".
VerifyOptions options(const std::string& line, const Program& program) {
  VerifyOptions result;
  std::istringstream in(line);
  std::string hash, word;
  in >> hash >> word;
  if (hash != "#") return result;
  if (word == "rendezvous") result.transport = Transport::rendezvous();
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

TEST(BadFiles, AreEachNamedByExactlyOneMessage) {
  std::size_t files = 0;
  const std::filesystem::path folder = MILLRACE_SOURCE_DIR "/tests/bad";
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (file.path().extension() != ".csv") continue;
    std::ifstream in(file.path());
    const std::string content{std::istreambuf_iterator<char>(in), {}};
    std::istringstream lines(content);
    std::string first, second;
    std::getline(lines, first);
    std::getline(lines, second);

    const ParsedProgram read = read_csv(content);
    ASSERT_TRUE(read.program) << file.path();
    const auto violations = verify(*read.program, options(second, *read.program));

    ASSERT_EQ(violations.size(), 1U) << file.path();
    EXPECT_EQ("# " + text(violations.front()), first) << file.path();
    ++files;
  }
  EXPECT_GE(files, 11U);
}

}  // namespace
}  // namespace millrace
