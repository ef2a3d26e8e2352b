// The two text forms over the catalogue: whatever a generator makes is read back as it was.
#include "millrace/scheduler/plan/text.hpp"

#include <vector>

#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "plan/text_cases.hpp"

namespace millrace {
namespace {

// Every schedule of the catalogue at a few sizes, where it has a meaning.
std::vector<Program> catalogue() {
  std::vector<Program> programs;
  for (const ScheduleEntry& entry : schedules())
    for (const int ranks : {1, 2, 4})
      for (const int micro_batches : {1, 4, 8}) {
        ScheduleOptions options;
        options.ranks = ranks;
        options.micro_batches = micro_batches;
        try {
          programs.push_back(generate(entry.name, options));
        } catch (const InvalidArgument&) {
          continue;  // has no meaning at this size
        }
      }
  return programs;
}

TEST(Text, EveryScheduleOfTheCatalogueSurvivesBothForms) {
  std::size_t csv = 0;
  for (const Program& program : catalogue()) {
    const ParsedPlan plan = read_plan(write_plan({program, {}}));
    ASSERT_TRUE(plan.plan) << program.name << ": " << faults(plan.diagnostics);
    EXPECT_EQ(plan.plan->program, program) << program.name;
    EXPECT_EQ(plan.plan->program.name, program.name);
    EXPECT_EQ(plan_hash(plan.plan->program), plan_hash(program));
    const bool braids = program.name.starts_with("stp") && program.shape.ranks > 1;
    if (program.shape.replicas() > 1 || program.shape.slices > 1 || braids) {
      EXPECT_THROW((void)write_csv(program), InvalidArgument) << program.name;
      continue;
    }
    const ParsedProgram read = read_csv(write_csv(program));
    ASSERT_TRUE(read.program) << program.name << ": " << faults(read.diagnostics);
    EXPECT_EQ(*read.program, program) << program.name;
    ++csv;
  }
  EXPECT_GT(csv, 0U);
}

}  // namespace
}  // namespace millrace
