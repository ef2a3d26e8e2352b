// The files that scheduler/README.md shows are read, run and mean what the text says.
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/scheduler/plan/costs.hpp"
#include "millrace/scheduler/plan/text.hpp"
#include "millrace/scheduler/plan/verify.hpp"

namespace millrace {
namespace {

/// The blocks of the README that are JSON.
std::vector<std::string> examples() {
  std::ifstream file(MILLRACE_SOURCE_DIR "/scheduler/README.md");
  std::vector<std::string> blocks;
  std::string line;
  for (bool inside = false; std::getline(file, line);) {
    if (line == "```json") {
      inside = true;
      blocks.emplace_back();
    } else if (line == "```") {
      inside = false;
    } else if (inside) {
      blocks.back() += line + "\n";
    }
  }
  return blocks;
}

Plan plan_of(const std::string& text) {
  ParsedPlan read = read_plan(text);
  EXPECT_TRUE(read.plan) << to_string(read.diagnostics.front());
  return read.plan.value_or(Plan{});
}

TEST(ReadmeFiles, ThePlansAreValidSchedules) {
  const auto blocks = examples();
  ASSERT_EQ(blocks.size(), 5U);
  const Plan both = plan_of(blocks[0]), sliced = plan_of(blocks[1]), skip = plan_of(blocks[2]),
             tied = plan_of(blocks[3]);

  EXPECT_EQ(both.program.shape.replicas(), 2);
  EXPECT_EQ(sliced.program.shape.slices, 2);
  EXPECT_EQ(sliced.boundaries, std::vector<int>{3});
  EXPECT_EQ(skip.program.shape.edges.size(), 3U);
  EXPECT_EQ(tied.program.shape.ties.size(), 1U);
  for (const Plan& plan : {both, sliced, skip, tied}) {
    EXPECT_THAT(verify(plan.program), testing::IsEmpty()) << plan.program.name;
    EXPECT_EQ(plan_of(write_plan(plan)), plan);
  }
}

TEST(ReadmeFiles, TheCostsGiveBackAllMemory) {
  const ParsedCosts read = read_costs(examples().back());
  ASSERT_TRUE(read.costs) << to_string(read.diagnostics.front());
  const Costs& cost = *read.costs;
  for (std::size_t stage = 0; stage < 2; ++stage)
    EXPECT_EQ(cost.memory_forward[stage] + cost.memory_input[stage] + cost.memory_weight[stage], 0);
}

TEST(ReadmeFiles, AHashMayBeMissingButNotWrong) {
  const std::string text = examples().front();
  const std::string hash = plan_hash(plan_of(text).program);
  const auto with = [&](const std::string& field) {
    return "{" + field + ", " + text.substr(text.find('{') + 1);
  };

  EXPECT_TRUE(read_plan(with("\"hash\": \"" + hash + "\"")).plan);
  for (const std::string field : {"hash", "checksum"})
    EXPECT_FALSE(read_plan(with("\"" + field + "\": \"0" + hash.substr(1) + "x\"")).plan) << field;
}

}  // namespace
}  // namespace millrace
