// millrace sweep as typed.
#include <algorithm>
#include <sstream>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "cli/command_test.hpp"

namespace millrace::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

class SweepCommand : public CommandTest {};

TEST_F(SweepCommand, CombinesListsAndRanges) {
  const Ran ran = command(
      "sweep 1f1b,dualpipe -p 2,4 -m 4..8 --times 1:1:1,2:2:1 --latency 0,0.5 "
      "--memory-limit none,1p --out " +
      path("t.csv"));
  const std::string table = read("t.csv");

  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(
      table,
      StartsWith("schedule,p,m,v,q,d,accumulate,f,i,w,latency,bandwidth,gradient_bytes,mem_f,mem_i,"
                 "mem_w,costs,memory_limit,"));
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 1 + 2 * 2 * 5 * 2 * 2 * 2);
  EXPECT_THAT(table, HasSubstr("\n1f1b,4,8,1,1,1,1,2,2,1,0.5,0,0,1,0,-1,,4,"));
  // dualpipe: m = 5 and 7 of p = 2, and 4 to 7 of p = 4, each with 8 costs and limits.
  EXPECT_EQ(ran.text,
            "millrace: 48 of 160 combinations have no meaning; the column reason says why\n");
}

TEST_F(SweepCommand, SeveralPasses_EqualSimulate) {
  const std::string more = " -p 2 -m 4 -d 2 --gradient-bytes 8 --bandwidth 1 --json ";
  std::istringstream rows(command("sweep zb-v --accumulate 1,3" + more).text);
  std::string line;
  for (const char* passes : {"1", "3"}) {
    ASSERT_TRUE(std::getline(rows, line));
    const json row = json::parse(line);
    const json one =
        json::parse(command(std::string("simulate zb-v --accumulate ") + passes + more).text);
    EXPECT_EQ(row["accumulate"], std::stoi(passes));
    for (const char* figure : {"makespan", "step"}) EXPECT_EQ(row[figure], one[figure]) << row;
  }
}

TEST_F(SweepCommand, AnyThreadCount_SameJsonLines) {
  const std::string subcommand = "sweep all -p 4 -m 8 --json --threads ";
  const Ran one = command(subcommand + "1"), many = command(subcommand + "5");

  EXPECT_EQ(one.text, many.text);
  const json row = json::parse(one.text.substr(0, one.text.find('\n')));
  EXPECT_EQ(row["schedule"], "gpipe");
  EXPECT_EQ(row["makespan"], 33);
  EXPECT_EQ(row["makespan"], json::parse(command("simulate gpipe --json").text)["makespan"]);
}

TEST_F(SweepCommand, TakesCostFilesAsSimulateDoes) {
  const std::string times = R"({"millrace_costs": 1, "unit": "s", "ranks": 2, "chunks": 1,
      "latency": 0.5, "forward": [1, 2], "input": [1, 1], "weight": [1, 1])";
  write("a.json", times + "}");
  write(
      "b.json",
      times + R"(, "memory_forward": [7, 5], "memory_input": [0, 0], "memory_weight": [-7, -5]})");
  const std::string both = path("a.json") + "," + path("b.json");
  const auto rows_of = [](const std::string& arguments) {
    std::istringstream lines(command("sweep zb-auto,1f1b -p 2 -m 5 --json " + arguments).text);
    std::vector<json> rows;
    for (std::string line; std::getline(lines, line);) rows.push_back(json::parse(line));
    return rows;
  };
  const auto simulated = [](const json& row, const std::string& more) {
    const std::string schedule = row["schedule"], file = row["costs"];
    const Ran ran =
        command("simulate " + schedule + " -p 2 -m 5 --json --costs " + file + " " + more);
    return json::parse(ran.text);
  };

  const std::vector<json> plain = rows_of("--costs " + both);
  ASSERT_EQ(plain.size(), 4U);
  for (const json& row : plain) {
    const json one = simulated(row, "");
    for (const char* figure : {"makespan", "span"}) EXPECT_EQ(row[figure], one[figure]) << row;
    EXPECT_EQ(row["latency"], 0.5);
  }
  EXPECT_EQ(plain[1]["costs"], path("b.json"));
  EXPECT_EQ(plain[1]["mem_f"], 6);

  const std::string limited = "--latency 2 --memory-limit 1p ";
  for (const json& row : rows_of("--costs " + path("b.json") + " " + limited))
    EXPECT_EQ(row["makespan"], simulated(row, limited)["makespan"]) << row;
  EXPECT_THAT(command("sweep 1f1b -p 2 " + limited + "--costs " + both).text,
              StartsWith("millrace: --memory-limit was given, but --costs " + path("a.json") +
                         " says nothing about memory; give --mem-f"));
  EXPECT_EQ(command("sweep 1f1b -p 2 --times 1:1:1 --costs " + both).text,
            "millrace: --times was given, but --costs " + path("a.json") +
                " has them too; leave one of them out\n");
  EXPECT_EQ(rows_of("--mem-f 3 --costs " + path("a.json"))[1]["peak_memory"], 2 * 3);
}

/// A sweep takes every cost that simulate does.
TEST_F(SweepCommand, SimulateCosts_SameMakespan) {
  for (const std::string costs : {"--rank-speed 1,2,1,0.5",
                                  "--cores 2",
                                  "--bandwidth 4 --message-bytes 2 --contention",
                                  "--chunk-costs --mem-f 3"}) {
    const json row = json::parse(command("sweep interleaved --json " + costs).text);
    const json one = json::parse(command("simulate interleaved --json " + costs).text);
    EXPECT_EQ(row["makespan"], one["makespan"]) << costs;
  }
}

TEST_F(SweepCommand, PlanFiles_InvalidRowsHaveAReason) {
  ASSERT_EQ(command("show zb-h1 -p 3 -m 5 --plan " + path("mine.plan")).code, 0);
  std::istringstream rows(
      command("sweep " + path("mine.plan") + ",1f1b -p 2,4 -m 6 --memory-limit 2 --json").text);
  std::vector<json> all;
  for (std::string line; std::getline(rows, line);) all.push_back(json::parse(line));

  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0]["schedule"], path("mine.plan"));
  EXPECT_EQ(all[0]["m"], 5);
  EXPECT_EQ(all[0]["makespan"],
            json::parse(command("simulate zb-h1 -p 3 -m 5 --json").text)["makespan"]);
  EXPECT_TRUE(all[1]["valid"]);
  EXPECT_EQ(all[1]["reason"], "");
  EXPECT_FALSE(all[2]["valid"]);
  EXPECT_THAT(std::string(all[2]["reason"]), HasSubstr("limit"));
}

TEST_F(SweepCommand, RefusesBadInputInOneMessage) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"1f2b", "unknown schedule '1f2b'; did you mean '1f1b'?"},
      {"1f1b, -p 2", "the list of schedules is '1f1b,'; expected entries with one ',' between"},
      {"1f1b -p 4..2", "-p 2: must be an integer from 4 to"},
      {"1f1b -m 1,x", "-m x: must be an integer from 1"},
      {"1f1b --times 1:1", "--times 1:1: must be F:I:W, such as 1:1:1"},
      {"1f1b --memory-limit 2q", "--memory-limit 2q: must be"},
      {"1f1b -v 2", "-v was given, but none of the schedules takes it"},
      {"1f1b --out /nowhere/t.csv", "--out /nowhere/t.csv cannot be written"},
  };
  for (const auto& [arguments, message] : cases) {
    const Ran ran = command("sweep " + arguments);
    EXPECT_EQ(ran.code, 2) << arguments;
    EXPECT_THAT(ran.text, StartsWith("millrace: " + message)) << arguments;
    EXPECT_EQ(std::count(ran.text.begin(), ran.text.end(), '\n'), 1) << arguments;
  }
}

}  // namespace
}  // namespace millrace::test
