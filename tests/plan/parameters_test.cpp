// The table of parameters against what generators do with it: a row is all that a parameter has.
#include <fstream>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/scheduler/plan/generators.hpp"

namespace millrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

std::string refusal_of(std::string_view schedule, const ScheduleOptions& options) {
  try {
    static_cast<void>(generate(schedule, options));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

bool is_count(const ScheduleParameter& parameter) {
  return std::holds_alternative<int ScheduleOptions::*>(parameter.field) ||
         std::holds_alternative<std::optional<int> ScheduleOptions::*>(parameter.field);
}

TEST(Parameters, HaveNamesAndSymbolsOfTheirOwn) {
  std::set<std::string_view> names, symbols;
  for (const ScheduleParameter& parameter : kScheduleParameters) {
    EXPECT_TRUE(names.insert(parameter.name).second) << parameter.name;
    EXPECT_TRUE(parameter.symbol.empty() || symbols.insert(parameter.symbol).second);
    EXPECT_FALSE(parameter.help.empty() || parameter.noun.empty() || parameter.lacked.empty());
    EXPECT_TRUE(!is_count(parameter) || !parameter.symbol.empty()) << "titles tell counts by it";
  }
  EXPECT_THROW(static_cast<void>(parameter_index("colour")), InvalidArgument);
}

TEST(Parameters, ReadWhatTheyTellAndForgetIt) {
  for (const ScheduleParameter& parameter : kScheduleParameters) {
    ScheduleOptions options;
    const auto before = value_of(options, parameter);
    const std::string text = parameter.name == "order" ? "lifo" : "3";

    set_value(options, parameter, text);
    EXPECT_EQ(value_of(options, parameter), text) << parameter.name;

    clear_value(options, parameter);
    EXPECT_EQ(value_of(options, parameter), before) << parameter.name;
  }
}

TEST(Parameters, TextOutOfRange_KeepsTheValue) {
  for (const ScheduleParameter& parameter : kScheduleParameters)
    for (const std::string text :
         {"x", "", "1 ", "nan", "2x", "-1", "99999999999999999999999e999"}) {
      ScheduleOptions options;
      const auto before = value_of(options, parameter);
      try {
        set_value(options, parameter, text);
        ADD_FAILURE() << parameter.name << " took " << text;
      } catch (const InvalidArgument& error) {
        EXPECT_EQ(
            std::string(error.what()),
            std::string(parameter.name) + " " + text + ": must be " + allowed_values(parameter));
      }
      EXPECT_EQ(value_of(options, parameter), before);
    }
}

TEST(Parameters, UnusedParameter_IsRejectedByEverySchedule) {
  for (const ScheduleEntry& entry : schedules())
    for (const ScheduleParameter& parameter : kScheduleParameters) {
      ScheduleOptions options;
      const std::string text = parameter.name == "order" ? "fifo" : "3";
      set_value(options, parameter, text);
      if (agrees(entry, options, parameter.name)) continue;
      EXPECT_THAT(
          refusal_of(entry.name, options),
          AllOf(StartsWith(std::string(parameter.name) + " " + text + " was given, but schedule '" +
                           std::string(entry.name) + "' has no " + std::string(parameter.lacked)),
                HasSubstr("; these have: ")));
    }
}

TEST(Parameters, BelowRange_AreRejectedByEverySchedule) {
  for (const ScheduleEntry& entry : schedules())
    for (const ScheduleParameter& parameter : kScheduleParameters) {
      if (!entry.takes(parameter.name) || !is_count(parameter)) continue;
      ScheduleOptions options;
      set_value(options, parameter, "1");
      std::visit(
          [&](auto field) {
            using Value = std::decay_t<decltype(options.*field)>;
            if constexpr (std::is_constructible_v<Value, int>) options.*field = Value(0);
          },
          parameter.field);
      EXPECT_THAT(refusal_of(entry.name, options),
                  StartsWith(std::string(parameter.name) + " is 0; " + std::string(parameter.noun) +
                             " is at least 1"))
          << entry.name;
    }
}

TEST(Parameters, ThatAreUnsetAreAsTheirDefault) {
  for (const ScheduleEntry& entry : schedules())
    for (const ScheduleParameter& parameter : kScheduleParameters) {
      if (!entry.takes(parameter.name) || default_value(parameter).empty()) continue;
      if (parameter.name == "chunks" && entry.default_chunks != 2) continue;
      if (parameter.name == "slices" && entry.slice_each_rank) continue;
      if (entry.name == "stp") continue;  // takes more micro-batches than the default
      const ScheduleOptions unset;
      ScheduleOptions set;
      set_value(set, parameter, default_value(parameter));
      EXPECT_EQ(generate(entry.name, set), generate(entry.name, unset))
          << entry.name << " " << parameter.name;
    }
}

TEST(Parameters, StandInTheReadmeAsInTheTable) {
  std::stringstream readme;
  readme << std::ifstream(std::string(MILLRACE_SOURCE_DIR) + "/scheduler/README.md").rdbuf();
  for (const ScheduleParameter& parameter : kScheduleParameters) {
    std::string row = "| `" + std::string(parameter.name) + "` |";
    for (const std::string& cell : {std::string(parameter.symbol),
                                    allowed_values(parameter),
                                    default_value(parameter),
                                    std::string(parameter.help)})
      row += " " + cell + " |";
    EXPECT_THAT(readme.str(), HasSubstr("\n" + row + "\n"));
  }
}

TEST(Parameters, KeepTheirIdentityInRefusals) {
  const auto brackets = [](std::string_view name) { return "<" + std::string(name) + ">"; };
  try {
    static_cast<void>(generate("chimera", {.ranks = 4, .micro_batches = 7}));
    FAIL();
  } catch (const InvalidParameter& error) {
    EXPECT_EQ(error.message().text(brackets),
              "<micro_batches> is 7 with <ranks> 4; chimera works with multiples of p: 4 or 8");
  }
}

}  // namespace
}  // namespace millrace
