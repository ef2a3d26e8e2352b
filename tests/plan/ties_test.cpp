// Weights that are one, declared beside the edges: what is refused, what files say of them, and
// who reduces with whom.
#include <gmock/gmock.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/graph.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/stage_graph.hpp"
#include "millrace/scheduler/plan/text.hpp"
#include "millrace/scheduler/plan/verify.hpp"
#include "support/small_programs.hpp"

namespace millrace {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using testing_plan::one_f_one_b;

StageTie tie(std::vector<StageWeight> weights) {
  return {std::move(weights)};
}

Program tied(int ranks, std::vector<StageTie> ties) {
  Program program = one_f_one_b(ranks, 2);
  program.shape.ties = std::move(ties);
  return program;
}

std::string refusal(std::vector<StageTie> ties) {
  try {
    static_cast<void>(StageGraph(tied(3, std::move(ties)).shape));
  } catch (const InvalidArgument& fault) {
    return fault.what();
  }
  return "accepted";
}

TEST(Ties, ThatCannotBeAreRefusedInOneMessage) {
  EXPECT_EQ(
      refusal({tie({{Stage{0}, "a"}, {Stage{2}, "b"}}), tie({{Stage{1}, "c"}, {Stage{1}, "d"}})}),
      "accepted");
  EXPECT_EQ(refusal({tie({{Stage{0}, "a"}})}), "a tie has at least 2 weights, got 1");
  EXPECT_EQ(refusal({tie({{Stage{0}, "a"}, {Stage{3}, "b"}})}),
            "tied weight 'b' of stage 3 names a stage outside 0 to 2");
  EXPECT_EQ(refusal({tie({{Stage{0}, "a"}, {Stage{1}, ""}})}),
            "a tied weight of stage 1 has no name");
  EXPECT_EQ(
      refusal({tie({{Stage{0}, "a"}, {Stage{1}, "b"}}), tie({{Stage{0}, "a"}, {Stage{2}, "c"}})}),
      "weight 'a' is tied twice");
  EXPECT_EQ(refusal({tie({{Stage{2}, "b"}, {Stage{0}, "a"}})}),
            "tied weight 'a' of stage 0 stands behind one of stage 2; they are named in the order "
            "of the layers");
}

TEST(Ties, AreInThePlanFileAndItsHash) {
  const Program program = tied(3, {tie({{Stage{0}, "first"}, {Stage{2}, "last"}})});
  const ParsedPlan read = read_plan(write_plan({program, {}}));
  ASSERT_TRUE(read.plan) << read.diagnostics.front().message;
  EXPECT_EQ(read.plan->program, program);
  EXPECT_NE(plan_hash(program), plan_hash(one_f_one_b(3, 2)));
  EXPECT_NE(plan_hash(program),
            plan_hash(tied(3, {tie({{Stage{0}, "first"}, {Stage{1}, "last"}})})));
  EXPECT_NE(plan_hash(program),
            plan_hash(tied(3, {tie({{Stage{0}, "first"}, {Stage{2}, "lost"}})})));
}

std::string fault_of(const std::string& ties) {
  std::string text = write_plan({tied(3, {tie({{Stage{0}, "first"}, {Stage{2}, "last"}})}), {}});
  const std::string good = "[[[0,\"first\"],[2,\"last\"]]]";
  const std::size_t at = text.find(good);
  EXPECT_NE(at, std::string::npos) << text;
  text.replace(at, good.size(), ties);
  const ParsedPlan read = read_plan(text);
  return read.diagnostics.empty() ? "read" : read.diagnostics.front().message;
}

TEST(Ties, ThatAFileSaysWronglyAreFoundWhereTheyStand) {
  EXPECT_EQ(fault_of("[]"), "there is no tie; leave the field out");
  EXPECT_EQ(fault_of("[[[0,\"first\"],[2]]]"), "a tied weight is [stage, name]");
  EXPECT_EQ(fault_of("[[[0,\"first\"],[2,3]]]"), "a tied weight is [stage, name]");
  EXPECT_EQ(fault_of("[[[0,\"first\"],[3,\"last\"]]]"),
            "tied weight 'last' of stage 3 names a stage outside 0 to 2");
  EXPECT_THAT(fault_of("[[[0,\"first\"],[1,\"last\"]]]"), HasSubstr("the file was changed"));
}

TEST(Ties, AreBeyondTheScheduleCsv) {
  try {
    static_cast<void>(write_csv(tied(3, {tie({{Stage{0}, "a"}, {Stage{2}, "b"}})})));
    ADD_FAILURE() << "no exception";
  } catch (const InvalidArgument& fault) {
    EXPECT_THAT(fault.what(), HasSubstr("no sign for a tie; a plan file (JSON) says it"));
  }
}

TEST(Ties, MakeAReductionWaitForThoseOfAllTiedStages) {
  const Program program = insert_reductions(tied(3, {tie({{Stage{0}, "a"}, {Stage{2}, "b"}})}));
  const Graph graph(program);
  const Node first = graph.first(Rank{1}) - 1;  // the last action of rank 0
  ASSERT_EQ(graph.action(first).op, Op::ReduceGrad);
  const Node last = graph.first(Rank{3}) - 1;  // of rank 2
  ASSERT_EQ(graph.action(last).op, Op::ReduceGrad);
  EXPECT_THAT(graph.producers(first), Contains(last - 1));
  EXPECT_THAT(graph.producers(last), Contains(first - 1));
}

TEST(Ties, OfSeveralStagesOnARankReduceBesideEachOther) {
  Program program = generate("interleaved", {.ranks = 2, .micro_batches = 4, .chunks = 2});
  program.shape.ties = {tie({{Stage{0}, "a"}, {Stage{1}, "b"}, {Stage{2}, "c"}, {Stage{3}, "d"}})};
  const Program reduced = insert_reductions(program);
  for (const auto& transport : {Transport::rendezvous(), Transport::unbounded()})
    EXPECT_TRUE(verify(insert_messages(reduced), transport).empty());
  int count = 0;
  for (const auto& list : reduced.ranks)
    for (const Action& action : list) count += action.op == Op::ReduceGrad ? 1 : 0;
  EXPECT_EQ(count, 4);
}

}  // namespace
}  // namespace millrace
