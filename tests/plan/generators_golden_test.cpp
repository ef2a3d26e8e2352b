// The compute orders of the papers and projects, op for op: each file in tests/golden holds one
// rank per row in PyTorch's letters; its first line names the schedule and where the order is
// published.
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/scheduler/plan/generators.hpp"

namespace millrace {
namespace {

/// The program in PyTorch's compute grammar, a row per rank.
std::string grid(const Program& program) {
  std::string text;
  for (const auto& list : program.ranks) {
    bool inside_pair = false;
    for (const Action& action : list) {
      if (&action != &list.front()) text += inside_pair ? ";" : ",";
      if (action.with_next) text += "(";
      text += to_string(action);
      if (inside_pair) text += ")OVERLAP_F_B";
      inside_pair = action.with_next;
    }
    text += "\n";
  }
  return text;
}

std::string golden(const std::string& file) {
  std::ifstream stream(std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/" + file + ".csv");
  std::string title;
  std::getline(stream, title);
  std::stringstream rest;
  rest << stream.rdbuf();
  return rest.str();
}

struct Case {
  const char* file;
  const char* schedule;
  ScheduleOptions options;
};

ScheduleOptions with(int chunks) {
  ScheduleOptions options;
  options.chunks = chunks;
  return options;
}

ScheduleOptions grouped(int chunks, int group) {
  ScheduleOptions options = with(chunks);
  options.group = group;
  return options;
}

TEST(Golden, PhaseProgramsAreTheirPublishedOrders) {
  const std::vector<Case> cases = {{"gpipe", "gpipe", {}},
                                   {"1f1b", "1f1b", {}},
                                   {"eager-1f1b", "eager-1f1b", {}},
                                   {"interleaved", "interleaved", with(2)},
                                   {"interleaved_g8", "interleaved", grouped(2, 8)},
                                   {"bfs", "bfs", with(2)},
                                   {"bfs-lifo", "bfs-lifo", with(2)},
                                   {"zb-h1", "zb-h1", {}},
                                   {"zb-h2", "zb-h2", {}},
                                   {"interleaved-zb", "interleaved-zb", with(2)}};

  for (const Case& one : cases)
    EXPECT_EQ(grid(generate(one.schedule, one.options)), golden(one.file)) << one.file;
}

TEST(Golden, VSchedulesAreTheirPublishedOrders) {
  for (const char* name : {"zb-v", "dualpipe-v", "v-half", "v-min", "zb-v-auto"})
    EXPECT_EQ(grid(generate(name, {})), golden(name)) << name;
  EXPECT_EQ(grid(generate("stp", {.micro_batches = 12})), golden("stp"));
}

TEST(Golden, BitPipe_IsItsPublishedOrder) {
  EXPECT_EQ(grid(generate("bitpipe", {})), golden("bitpipe"));
}

TEST(Golden, ZbAutoIsThePublishedHeuristicUnderThreeLimits) {
  for (const auto& [file, limit] :
       {std::pair{"zb-auto_1p", 8.0}, {"zb-auto_1.5p", 12.0}, {"zb-auto_2p", 16.0}}) {
    ScheduleOptions options;
    options.memory_limit = limit;
    const Costs costs{.memory_forward = {2}, .memory_input = {-1}, .memory_weight = {-1}};
    EXPECT_EQ(grid(generate("zb-auto", options, costs)), golden(file)) << file;
  }
}

TEST(Golden, VZbIsThePublishedSearchUnderThreeCaps) {
  for (const auto& [file, limit] :
       {std::pair{"v-zb_cap4", 2}, {"v-zb_cap6", 3}, {"v-zb_cap8", 4}}) {
    ScheduleOptions options;
    options.memory_limit = limit;
    EXPECT_EQ(grid(generate("v-zb", options)), golden(file)) << file;
  }
}

}  // namespace
}  // namespace millrace
